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
    optimizer: torch.optim.Optimizer, model: nn.Module, folder: Path, *, step: int
) -> None:
    """Writes the optimiser's tensors by parameter name, and the step count.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{key}:{name}"] = value.contiguous()
            else:
                scalars.setdefault(name, {})[key] = value
    write_tensors(folder / "optimizer.safetensors", tensors)
    document = {"step": step, "scalars": scalars, "tensors": _shapes(tensors)}
    (folder / "optimizer.json").write_text(json.dumps(document))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, folder: Path) -> int:
    """Restores what `save_optimizer` wrote and returns the step count.

    Raises:
        CheckpointError: a file is missing, damaged, or names parameters that the model lacks.
    """
    try:
        tensors = read_tensors(folder / "optimizer.safetensors")
        saved = json.loads((folder / "optimizer.json").read_text())
        step, scalars_by_name = int(saved["step"]), dict(saved["scalars"])
        if saved["tensors"] != _shapes(tensors):
            raise ValueError("its tensors are not those that were saved.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The optimiser state in {folder} cannot be read: {error}",
            "It holds both moments of every weight, as they were saved.",
            "Delete this checkpoint to use an older one.",
        ) from error
    parameters = dict(model.named_parameters())
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
