"""Safetensors files, whose faults are those of any other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises an OSError where safetensors meets a full disk or a damaged file."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes named tensors.

    Raises:
        OSError: the disk is full, or does not take the file for another reason.
    """
    with disk_errors():
        save_file(dict(tensors), str(path))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file by name, on the CPU.

    Raises:
        OSError: the file is missing or damaged.
    """
    with disk_errors():
        return load_file(str(path))
