"""One process's part of a role on disk, beside those of the role's other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexrlhf.core.errors import CheckpointError
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_files import read_tensors, write_tensors
from flexrlhf.learning.training.shard import check_layout


def layout_json(boxes: Mapping[str, Box]) -> dict[str, Any]:
    """Returns which part of each weight a file holds."""
    return {name: [list(box.start), list(box.stop)] for name, box in boxes.items()}


def save_parts(shards: Mapping[str, Shard], folder: Path, stem: str) -> None:
    """Writes the parts of the weights, and which parts they are.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: shard.tensor.contiguous() for name, shard in shards.items()}
    write_tensors(folder / f"{stem}.safetensors", tensors)
    document = {
        "layout": _layout(shards),
        "shapes": {name: list(shard.shape) for name, shard in shards.items()},
    }
    (folder / f"{stem}.json").write_text(json.dumps(document))


def load_parts(shards: Mapping[str, Shard], folder: Path, stem: str) -> None:
    """Reads what `save_parts` wrote into the same parts, in place.

    Raises:
        CheckpointError: a file is missing, damaged, or of another layout or model.
    """
    try:
        tensors = read_tensors(folder / f"{stem}.safetensors")
        saved = json.loads((folder / f"{stem}.json").read_text())
    except (OSError, ValueError) as error:
        raise _damaged(folder, stem, str(error)) from error
    if not isinstance(saved, dict):
        raise _damaged(folder, stem, "its layout is no JSON object")
    check_layout(saved.get("layout"), _layout(shards), folder)
    for name, shard in shards.items():
        if name not in tensors or tensors[name].shape != shard.tensor.shape:
            raise _damaged(folder, stem, f"it lacks {name}")
    for name, shard in shards.items():
        shard.tensor.copy_(tensors[name])


def _layout(shards: Mapping[str, Shard]) -> dict[str, Any]:
    return layout_json({name: shard.box for name, shard in shards.items()})


def _damaged(folder: Path, stem: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder / stem}.safetensors cannot be loaded: {why}",
        "It must hold this process's part of the run's model.",
        "Resume with the run's own config, or delete this checkpoint to use an older one.",
    )
