"""One role's weights and optimiser on disk: safetensors and JSON, nothing pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from flexrlhf.core.errors import CheckpointError
from flexrlhf.learning.models.tensor_files import disk_errors, read_tensors, write_tensors


def save_weights(model: nn.Module, folder: Path) -> None:
    """Writes every parameter and buffer of `model` once, tied tensors included.

    Raises:
        OSError: the disk is full, or does not take the file for another reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with disk_errors():
        save_model(model, str(folder / "weights.safetensors"))


def load_weights(model: nn.Module, folder: Path) -> None:
    """Reads weights into `model` in place.

    Raises:
        CheckpointError: the file is missing, damaged, or of another architecture.
    """
    path = folder / "weights.safetensors"
    try:
        with disk_errors():
            load_model(model, str(path), strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} cannot be loaded: {error}",
            "It must hold the tensors of this run's model.",
            "Resume with the run's own config, or delete this checkpoint to use an older one.",
        ) from error


def save_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    folder: Path,
    *,
    step: int,
    stem: str = "optimizer",
    layout: Mapping[str, Any] | None = None,
) -> None:
    """Writes the optimiser's tensors by parameter name, and the step count.

    Args:
        optimizer: over `parameters`.
        parameters: by name; names outlive the process, parameters do not.
        folder: where to write.
        step: optimiser steps taken so far.
        stem: name of the files.
        layout: which part of each weight the tensors belong to, as JSON; None: the whole.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{key}:{name}"] = value.contiguous()
            else:
                scalars.setdefault(name, {})[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / f"{stem}.safetensors", tensors)
    document = {"step": step, "scalars": scalars, "tensors": _shapes(tensors)}
    if layout is not None:
        document["layout"] = layout
    (folder / f"{stem}.json").write_text(json.dumps(document))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def check_layout(saved: Any, held: Mapping[str, Any] | None, folder: Path) -> None:
    """Checks that the parts of a checkpoint are those that this process holds.

    Raises:
        CheckpointError: the role was split otherwise when it was saved.
    """
    if saved != held:
        raise CheckpointError(
            f"{folder} was saved by a role that was split otherwise over its devices.",
            "Each process reads the parts that it wrote itself.",
            "Resume under the placement of the first part of the run.",
        )


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    folder: Path,
    *,
    stem: str = "optimizer",
    layout: Mapping[str, Any] | None = None,
) -> int:
    """Restores what `save_optimizer` wrote and returns the step count.

    Raises:
        CheckpointError: a file is missing, damaged, of another layout, or names parameters that
            the model lacks.
    """
    try:
        tensors = read_tensors(folder / f"{stem}.safetensors")
        saved = json.loads((folder / f"{stem}.json").read_text())
        step, scalars_by_name = int(saved["step"]), dict(saved["scalars"])
        if saved["tensors"] != _shapes(tensors):
            raise ValueError("its tensors are not those that were saved.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The optimiser state in {folder} cannot be read: {error}",
            "It holds both moments of every weight, as they were saved.",
            "Delete this checkpoint to use an older one.",
        ) from error
    check_layout(saved.get("layout"), layout, folder)
    named = {key.split(":", 1)[1] for key in tensors} | scalars_by_name.keys()
    unknown = sorted(named - parameters.keys())
    if unknown:
        raise CheckpointError(
            f"{folder} holds optimiser state of {unknown[0]!r}, which this model does not have.",
            "The checkpoint must come from the same architecture.",
            "Resume with the run's own config.",
        )
    optimizer.state.clear()
    for name, scalars in scalars_by_name.items():
        optimizer.state[parameters[name]].update(scalars)
    for key, tensor in tensors.items():
        field, name = key.split(":", 1)
        parameter = parameters[name]
        # Step counters stay where AdamW keeps them; moments live beside their parameter.
        device = tensor.device if tensor.dim() == 0 and parameter.is_cpu else parameter.device
        optimizer.state[parameter][field] = tensor.to(device)
    return step
