"""Peak memory of this process or its GPU over a span of work."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from flexrlhf.core.machine import available_bytes

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_MALLOC_ARENA_MAX: Final = -8
"""glibc's M_ARENA_MAX of malloc.h."""


def share_one_heap() -> None:
    """Lets all threads allocate from one heap, best before the first of them starts.

    By default glibc gives each thread a heap of its own; what the main thread's trial step leaves
    free there the worker's thread cannot use, and the process holds both.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MALLOC_ARENA_MAX, 1)


def give_back_freed(device: torch.device) -> None:
    """Returns to the system, or to the GPU, what the allocator keeps of freed memory."""
    libc = _glibc()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif libc is not None:
        libc.malloc_trim(0)


def _glibc() -> Any | None:
    """Returns the C library where it is glibc, whose allocator can be told such things."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def reset_peak(device: torch.device) -> None:
    """Starts a new span; `peak_bytes` then counts from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:  # some containers forbid it; the peak is then of the whole process
            return


def peak_bytes(device: torch.device) -> int:
    """Returns the most bytes held since `reset_peak`.

    On a GPU these are torch's allocations; on a CPU the resident set of the process, which is its
    present size where the system keeps no peak.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return held_bytes(device)


def held_bytes(device: torch.device) -> int:
    """Returns the bytes held now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that could still be taken.

    On a GPU those that torch only caches are among them; on a CPU a container's limit counts.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_bytes()
