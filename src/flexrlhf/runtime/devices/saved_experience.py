"""What was generated ahead and is not trained on yet, in the files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flexrlhf.core.errors import CheckpointError
from flexrlhf.learning.models.tensor_files import read_tensors, write_tensors
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike
from flexrlhf.runtime.devices.device_map import DeviceMap

FOLDER: Final = "experience"
"""In a checkpoint: two files per worker."""


def save_experience(
    folder: Path, rank: int, state: ParcelLike, places: Mapping[str, list[int]]
) -> None:
    """Writes what one worker holds.

    Args:
        folder: of the checkpoint.
        rank: of the worker.
        state: of its buffer.
        places: who keeps what, to compare when it is read.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    file = _file(folder, rank)
    file.parent.mkdir(exist_ok=True)
    write_tensors(file.with_suffix(".safetensors"), state.tensors)
    document = {"places": places, "state": dict(state.header)}
    file.write_text(json.dumps(document, allow_nan=False))


def load_experience(folder: Path, rank: int, places: Mapping[str, list[int]]) -> Parcel:
    """Returns what `save_experience` wrote.

    Raises:
        CheckpointError: a file is missing or damaged, or other workers kept what is in it.
    """
    file = _file(folder, rank)
    try:
        document: dict[str, Any] = dict(json.loads(file.read_bytes()))
        saved, header = document["places"], document["state"]
        tensors = read_tensors(file.with_suffix(".safetensors"))
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise damaged_experience(folder, rank, error) from error
    if saved != places:
        raise CheckpointError(
            f"{folder} holds answers that were generated ahead under another placement.",
            "They are read by the workers that wrote and scored them.",
            "Resume under the placement of the first part of the run.",
        )
    return Parcel(header, tensors)


def damaged_experience(folder: Path, rank: int, error: Exception) -> CheckpointError:
    """Returns the error for what cannot be understood."""
    return CheckpointError(
        f"{_file(folder, rank)} cannot be read: {error!r}",
        "It holds what this worker generated and scored before the checkpoint.",
        f"Delete {folder} to go on from an older checkpoint, or from the start.",
    )


def places_of(device_map: DeviceMap, num_parts: int) -> dict[str, list[int]]:
    """Returns who keeps the answers of a run, and what each role says of them.

    Args:
        device_map: of the run.
        num_parts: into which a rollout is cut.
    """
    scorers = {role: list(device_map.scorers(role)) for role in device_map.plan.placement}
    return {"generate": list(device_map.generators), "parts": [num_parts], **scorers}


def _file(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"worker-{rank}.json"
