"""How much of the machine others use while something is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


class ForeignLoad:
    """Counts processor seconds from its making on.

    Args:
        processes: whose seconds are ours, beside this one's.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = (os.getpid(), *processes)
        self._start_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), self._ours_s()

    def share(self) -> float:
        """Returns the part of all cores' time since then that others used."""
        passed_s = (time.monotonic() - self._start_s) * (os.cpu_count() or 1)
        others_s = _busy_s() - self._busy_s - (self._ours_s() - self._own_s)
        return max(0.0, others_s / passed_s)

    def _ours_s(self) -> float:
        return sum(_process_s(process) for process in self._processes)


def _busy_s() -> float:
    """Seconds in which cores were not idle and not waiting for a disk."""
    user, nice, system, _, _, interrupt, soft, *_ = map(
        int, Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft) * _TICKS_S


def _process_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICKS_S
