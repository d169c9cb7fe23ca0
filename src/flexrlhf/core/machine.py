"""Cores and memory of this machine, as far as this process may use them."""

from __future__ import annotations

import importlib
import math
import os
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


def logical_cpus() -> int:
    """Returns the CPUs that this process may run on, hardware threads counted one by one."""
    return len(_allowed_cpus())


def physical_cores(root: Path = Path("/")) -> int:
    """Returns the cores that this process may use; two hardware threads of a core are one.

    Args:
        root: where `sys` is mounted.
    """
    siblings = {
        file_text(root / _CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list") or f"cpu {cpu}"
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
    limits = [int(text) for path in _MEMORY_LIMITS if (text := file_text(root / path)).isdecimal()]
    if machine is None or not limits:
        return machine
    limit = min(limits)
    return Memory(min(machine.total_bytes, limit), min(machine.available_bytes, limit))


def file_text(path: Path) -> str:
    """Returns a file's text without the space around it, nothing where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _allowed_cpus() -> set[int]:
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cpu_quota(root: Path) -> float | None:
    """Returns the cores that a container's quota allows, None without one."""
    fields = file_text(root / _QUOTA_V2).split() or [file_text(root / path) for path in _QUOTA_V1]
    if len(fields) == 2 and all(field.isdecimal() for field in fields):
        return int(fields[0]) / int(fields[1])
    return None


def _kernel_memory(root: Path) -> Memory | None:
    rows = dict(line.split(":", 1) for line in file_text(root / "proc/meminfo").splitlines())
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
