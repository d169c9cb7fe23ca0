"""What this machine has, as far as this process may use it: cores, memory, disk space, GPUs."""

from __future__ import annotations

import importlib
import math
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_CPU = "sys/devices/system/cpu"
_QUOTA_V2 = "sys/fs/cgroup/cpu.max"
_QUOTA_V1 = ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us")
_MEMORY_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory; a container's limit counts where it is lower than the machine's."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that torch can use."""

    name: str
    memory_bytes: int


def logical_cpus() -> int:
    """Returns the CPUs that this process may run on, hardware threads counted one by one."""
    return len(_allowed_cpus())


def physical_cores(root: Path = Path("/")) -> int:
    """Returns the cores that this process may use; two hardware threads of a core are one.

    Args:
        root: where `sys` is mounted.
    """
    siblings = {
        _read(root / _CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list") or f"cpu {cpu}"
        for cpu in _allowed_cpus()
    }
    quota = _cpu_quota(root)
    return len(siblings) if quota is None else max(1, min(len(siblings), math.ceil(quota)))


def memory(root: Path = Path("/")) -> Memory | None:
    """Returns the main memory, None where neither the kernel nor psutil tells.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    machine = _kernel_memory(root) or _psutil_memory()
    limits = [int(text) for path in _MEMORY_LIMITS if (text := _read(root / path)).isdecimal()]
    if machine is None or not limits:
        return machine
    limit = min(limits)
    return Memory(min(machine.total_bytes, limit), min(machine.available_bytes, limit))


def free_disk_bytes(folder: Path) -> int:
    """Returns the free space of the disk that holds `folder`, or would hold it."""
    return shutil.disk_usage(existing_folder(folder)).free


def existing_folder(folder: Path) -> Path:
    """Returns `folder`, or the nearest folder above it that exists."""
    whole = folder.absolute()
    return next(path for path in (whole, *whole.parents) if path.is_dir())


def processor_name(root: Path = Path("/")) -> str:
    """Returns what the processor calls itself."""
    for line in _read(root / "proc/cpuinfo").splitlines():
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


def _allowed_cpus() -> set[int]:
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cpu_quota(root: Path) -> float | None:
    """Returns the cores that a container's quota allows, None without one."""
    fields = _read(root / _QUOTA_V2).split() or [_read(root / path) for path in _QUOTA_V1]
    if len(fields) == 2 and all(field.isdecimal() for field in fields):
        return int(fields[0]) / int(fields[1])
    return None


def _kernel_memory(root: Path) -> Memory | None:
    rows = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines())
    if not {"MemTotal", "MemAvailable"} <= set(rows):
        return None
    total, available = (int(rows[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    return Memory(total, available)


def _psutil_memory() -> Memory | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    state = psutil.virtual_memory()
    return Memory(state.total, state.available)


def _read(path: Path) -> str:
    """Returns a file's text, nothing where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
