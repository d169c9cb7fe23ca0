"""Processes that get a part of a core only, by a control group of Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Of version 1 and of version 2."""
PERIOD_US = 100_000


@contextmanager
def cpu_quota(processes: Sequence[int], part: float) -> Iterator[None]:
    """Holds processes to a part of a core until the block ends.

    Raises:
        OSError: this user may not make control groups here, or there are none.
    """
    root = next((root for root in ROOTS if (root / "cgroup.procs").is_file()), ROOTS[-1])
    group = root / f"flexrlhf-{os.getpid()}"
    group.mkdir()
    try:
        _limit(group, round(part * PERIOD_US))
        for process in processes:
            (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(process)
        group.rmdir()


def _limit(group: Path, quota_us: int) -> None:
    if (group / "cpu.cfs_quota_us").is_file():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
