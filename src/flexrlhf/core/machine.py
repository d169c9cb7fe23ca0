"""Cores and memory of this machine, as far as this process may use them."""

from __future__ import annotations

import importlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from flexrlhf.core.errors import EngineMissing

_CPU = "sys/devices/system/cpu"
_QUOTA_V2 = "sys/fs/cgroup/cpu.max"
_QUOTA_V1 = ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us")
_CGROUPS_V2_V1 = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
)
"""A container's limit, what its processes use, and of what that consists."""


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
    container = _container_memory(root)
    if machine is None or container is None:
        return machine
    return Memory(
        min(machine.total_bytes, container.total_bytes),
        min(machine.available_bytes, container.available_bytes),
    )


def available_bytes() -> int:
    """Returns the main memory that this process could still take.

    Raises:
        EngineMissing: neither the kernel nor psutil tells.
    """
    state = memory()
    if state is None:
        raise EngineMissing(
            "This system does not tell how much memory is free.",
            "On systems without /proc/meminfo the package psutil tells.",
            "Run `pip install psutil`.",
        )
    return state.available_bytes


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


def _container_memory(root: Path) -> Memory | None:
    """Returns the memory of the container around this process, None without a limit."""
    for limit, usage, statistics in _CGROUPS_V2_V1:
        total, used = file_text(root / limit), file_text(root / usage)
        if total.isdecimal():
            rows = dict(row.split() for row in file_text(root / statistics).splitlines())
            # Files that nobody reads any more leave when their memory is wanted.
            evictable = int(rows.get("total_inactive_file", rows.get("inactive_file", "0")))
            held = int(used) - evictable if used.isdecimal() else 0
            return Memory(int(total), max(0, int(total) - held))
    return None


def _psutil_memory() -> Memory | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    state = psutil.virtual_memory()
    return Memory(state.total, state.available)
