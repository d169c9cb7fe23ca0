"""A process that sleeps through every task, without torch, so that hundreds fit on one machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexrlhf.planning.workflow.graph import Task, Transfer


@dataclass(frozen=True, slots=True)
class SleptReport:
    """What a worker's process reports, in the form of `device_host.Report`."""

    start_s: float
    end_s: float
    value: Any = None
    failure: None = None
    logged: tuple[()] = ()


class SleepingHost:
    """The process of one device.

    Args:
        seconds: of every task and transfer, by name.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds

    def process_id(self) -> int:
        """Returns the number of this process, once it is ready."""
        return os.getpid()

    def live(self) -> None:
        """Never returns: whoever waits for it hears when the process ends."""
        threading.Event().wait()

    def run(self, task: Task) -> SleptReport:
        """Sleeps as long as a task takes."""
        return self._slept(task)

    def prefetch(self, transfer: Transfer) -> SleptReport:
        """Sleeps as long as a transfer takes."""
        return self._slept(transfer)

    def finish(self, iteration: int) -> SleptReport:  # noqa: ARG002 - nothing was kept
        """Has nothing to drop."""
        now_s = time.time()
        return SleptReport(now_s, now_s)

    def describe(self) -> str:
        """Returns what a worker says that is asked why nothing comes."""
        return "sleeps"

    def _slept(self, item: Task | Transfer) -> SleptReport:
        start_s = time.time()
        time.sleep(self._seconds[item.name])
        return SleptReport(start_s, time.time(), {})
