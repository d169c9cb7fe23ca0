"""Peak memory of this process or its GPU over a span of work."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from flexrlhf.core.machine import available_bytes

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


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
