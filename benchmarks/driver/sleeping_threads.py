"""A thread per device of a plan that sleeps through every task: as many workers as one wants."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from planned import Planned

from flexrlhf.planning.simulation.spans import device_track
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.workers import Outcome, Stint


@contextmanager
def sleeping_threads(plan: Planned, seconds: Mapping[str, float]) -> Iterator[SleepingThreads]:
    """Yields the threads of a plan, and lets them end.

    Args:
        plan: that is driven.
        seconds: of every task and transfer, by name.
    """
    workers = SleepingThreads(DeviceMap(plan.plan, plan.spec), seconds)
    try:
        yield workers
    finally:
        workers.close()


class SleepingThreads:
    """The workers of one run, a thread for the tasks and one for the transfers of each.

    Args:
        device_map: who does what.
        seconds: of every task and transfer, by name.
    """

    def __init__(self, device_map: DeviceMap, seconds: Mapping[str, float]) -> None:
        self._map = device_map
        self._seconds = seconds
        self._reports: queue.SimpleQueue[tuple[Task | Transfer, Stint]] = queue.SimpleQueue()
        self._stints: dict[tuple[int, str], list[Stint]] = {}
        self._awaited: dict[tuple[int, str], int] = {}
        self._inbox: dict[tuple[int, bool], queue.SimpleQueue[Task | Transfer | None]] = {}
        tracks = self.tracks
        for rank, track in enumerate(tracks):
            for is_task in (True, False):
                inbox = self._inbox[rank, is_task] = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(inbox, track), daemon=True).start()

    @property
    def tracks(self) -> tuple[str, ...]:
        """The track of every worker, in the order of devices."""
        return tuple(device_track(device) for device in self._map.plan.devices)

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, or a transfer on the group that receives it."""
        ranks = self._ranks(item)
        self._stints[item.iteration, item.name] = []
        self._awaited[item.iteration, item.name] = len(ranks)
        for rank in ranks:
            self._inbox[rank, isinstance(item, Task)].put(item)

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next on all its workers."""
        until_s = time.monotonic() + deadline_s
        while True:
            item, stint = self._reports.get(timeout=max(0.0, until_s - time.monotonic()))
            key = (item.iteration, item.name)
            stints = self._stints[key]
            stints.append(stint)
            if len(stints) == self._awaited[key]:
                del self._stints[key], self._awaited[key]
                return Outcome(item, stints)

    def finish(self, iteration: int) -> None:
        """Nothing is kept of an iteration."""

    def ask(self, method: str, *_: Any, deadline_s: float, beside: bool = False) -> list[Any]:
        """Threads that sleep have no methods."""
        raise AssertionError(f"nothing to ask: {method}, {deadline_s}, {beside}")

    def close(self) -> None:
        """Lets all threads end."""
        for inbox in self._inbox.values():
            inbox.put(None)

    def _ranks(self, item: Task | Transfer) -> tuple[int, ...]:
        group = item.group if isinstance(item, Task) else item.target_group
        return self._map.group_ranks(group)

    def _serve(self, inbox: queue.SimpleQueue[Task | Transfer | None], track: str) -> None:
        while (item := inbox.get()) is not None:
            start_s = time.monotonic()
            time.sleep(self._seconds[item.name])
            self._reports.put((item, Stint(track, start_s, time.monotonic())))
