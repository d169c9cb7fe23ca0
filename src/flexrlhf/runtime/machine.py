"""What this machine has besides cores and memory: disk space, a processor's name, GPUs."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from flexrlhf.core.machine import file_text


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that torch can use."""

    name: str
    memory_bytes: int


def free_disk_bytes(folder: Path) -> int:
    """Returns the free space of the disk that holds `folder`, or would hold it."""
    return shutil.disk_usage(existing_folder(folder)).free


def existing_folder(folder: Path) -> Path:
    """Returns `folder`, or the nearest folder above it that exists."""
    whole = folder.absolute()
    return next(path for path in (whole, *whole.parents) if path.is_dir())


def processor_name(root: Path = Path("/")) -> str:
    """Returns what the processor calls itself."""
    for line in file_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def gpus() -> list[Gpu]:
    """Returns the GPUs that torch sees; imports torch."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(device.name, device.total_memory) for device in found]


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Says whether an NVIDIA driver is loaded, whatever torch makes of it."""
    return (root / "proc/driver/nvidia/version").exists()
