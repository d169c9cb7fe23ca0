"""Drives the workers of a run through Ray: control alone, never a tensor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import FlexError
from flexrlhf.planning.simulation.spans import device_track
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.ray_cluster.device_host import doing_of
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.remote_calls import RemoteCalls
from flexrlhf.runtime.workers import Outcome, Stint


@dataclass(slots=True)
class _InProgress:
    """A task or transfer on its workers."""

    item: Task | Transfer
    waiting: dict[Any, int]
    """Reference of each report that has not come, and its worker."""
    stints: list[Stint] = field(default_factory=list[Stint])


class RayWorkers:
    """The workers of one run.

    Args:
        processes: with a process per worker, each opened and joined.
        device_map: who does what.
        clock: its present time is put on the timeline beside the workers' own.
    """

    def __init__(self, processes: RayProcesses, device_map: DeviceMap, clock: Clock) -> None:
        self._map = device_map
        self._calls = RemoteCalls(processes, self._name, self._told)
        self._origin_s = time.time() - clock.now_s()
        self._progress: dict[tuple[int, str], _InProgress] = {}
        self._item_of: dict[Any, tuple[int, str]] = {}
        self._ready: deque[Any] = deque()
        """References that are known to be ready and have not been taken in."""
        self._tracks = tuple(device_track(device) for device in device_map.plan.devices)
        self._finishing: dict[Any, int] = {}
        """Reference and worker of calls that nobody waits for."""

    @property
    def tracks(self) -> tuple[str, ...]:
        """The track of every worker, in the order of devices."""
        return self._tracks

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, or a transfer on the group that receives it."""
        if isinstance(item, Task):
            ranks, method, group = self._map.group_ranks(item.group), "run", "work"
        else:
            ranks, method, group = self._map.group_ranks(item.target_group), "prefetch", "data"
        key = (item.iteration, item.name)
        waiting = {self._calls.call(rank, method, group, item): rank for rank in ranks}
        self._progress[key] = _InProgress(item, waiting)
        self._item_of.update(dict.fromkeys(waiting, key))

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next on all its workers, or fails on one.

        Raises:
            WorkerLost: nothing did within `deadline_s` seconds, or a worker's process ended.
        """
        until_s = time.monotonic() + max(0.0, deadline_s)
        while True:
            if not self._ready:
                references = [*self._item_of, *self._finishing]
                self._ready += self._calls.all_ready(references, until_s - time.monotonic())
            if not self._ready:
                names = ", ".join(progress.item.name for progress in self._progress.values())
                raise self._calls.overdue(deadline_s, names or "nothing")
            ready = self._ready.popleft()
            if ready in self._finishing:
                self._note_finished(ready)
            elif (outcome := self._take(ready)) is not None:
                return outcome

    def finish(self, iteration: int) -> None:
        """Lets all workers drop what was made in an iteration; nobody waits for it."""
        for rank in range(self._map.num_ranks):
            self._finishing[self._calls.call(rank, "finish", "control", iteration)] = rank

    def ask(
        self, method: str, *arguments: Any, deadline_s: float, beside: bool = False
    ) -> list[Any]:
        """Runs a method on every worker; returns one answer each, in order of devices.

        Args:
            method: its name.
            arguments: of the method.
            deadline_s: the longest that a worker may take.
            beside: while a task runs; else between tasks.

        Raises:
            WorkerLost: one did not answer within `deadline_s` seconds, or a process ended.
            FlexError: of a worker.
        """
        ranks = range(self._map.num_ranks)
        group = "control" if beside else "work"
        calls = [self._calls.call(rank, "ask", group, method, arguments) for rank in ranks]
        return self._calls.values(calls, deadline_s, lambda rank: f"{self._name(rank)}, {method}")

    def close(self) -> None:
        """Leaves the processes for the next run; whoever made them ends them."""

    def _take(self, reference: Any) -> Outcome | None:
        """Takes in one report; returns the outcome if it was the last, or a failure."""
        key = self._item_of.pop(reference)
        progress = self._progress[key]
        rank = progress.waiting[reference]
        report = self._calls.report(rank, reference)
        del progress.waiting[reference]
        if report.failure is not None:
            place = f"{self._name(rank)}, {doing_of(progress.item)}"
            return self._failed(key, self._calls.error(rank, report.failure, place))
        value: Mapping[str, Any] = report.value or {}
        progress.stints.append(
            Stint(
                self.tracks[rank],
                report.start_s - self._origin_s,
                report.end_s - self._origin_s,
                dict(value),
            )
        )
        if progress.waiting:
            return None
        del self._progress[key]
        return Outcome(progress.item, progress.stints)

    def _note_finished(self, reference: Any) -> None:
        rank = self._finishing.pop(reference)
        report = self._calls.report(rank, reference)
        if report.failure is not None:
            raise self._calls.error(rank, report.failure, self._name(rank))

    def _failed(self, key: tuple[int, str], error: FlexError) -> Outcome:
        progress = self._progress.pop(key)
        for reference in progress.waiting:
            del self._item_of[reference]
        self._ready = deque(r for r in self._ready if r not in progress.waiting)
        return Outcome(progress.item, progress.stints, error)

    def _name(self, rank: int) -> str:
        roles = ", ".join(self._map.roles_of(rank))
        return f"worker {rank} ({roles})"

    def _told(self, rank: int) -> str:
        """Returns how much a worker has to do, and what."""
        items = [p.item for p in self._progress.values() if rank in p.waiting.values()]
        return f"{len(items)} ({', '.join(map(doing_of, items))})" if items else "nothing"
