"""The workers of a run in piped processes, as the training loop drives them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from piped_processes import PipedProcesses

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.clock import Clock
from flexrlhf.learning.transport.server import LOOPBACK
from flexrlhf.planning.simulation.spans import device_track
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.work_order import Meeting, WorkOrder
from flexrlhf.runtime.workers import Outcome, Stint

_JOIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class PipedLaunch:
    """Workers that have met, and what the loop must know of them."""

    processes: PipedProcesses
    order: WorkOrder

    @property
    def config(self) -> RunConfig:
        """The run."""
        return self.order.config

    @property
    def spec(self) -> AlgorithmSpec:
        """Its algorithm."""
        return self.order.spec

    @property
    def shape(self) -> IterationShape:
        """How an iteration is cut."""
        return self.order.shape

    def connect(self, clock: Clock) -> PipedWorkers:
        """Takes the workers into use, with a clock for their spans."""
        return PipedWorkers(self.processes, DeviceMap(self.order.plan, self.spec), clock)


def launch_piped(order: WorkOrder, processes: PipedProcesses) -> PipedLaunch:
    """Lets the workers of a run meet and load their roles; GPUs are shared by all of them."""
    ranks = range(len(processes))

    def ask(method: str, asked: range, *arguments: Any) -> list[Any]:
        calls = [processes.call(rank, "work", method, *arguments) for rank in asked]
        return processes.values(calls, _JOIN_S)

    opened = [processes.call(rank, "work", "open", order, rank, None) for rank in ranks]
    addresses = tuple(processes.values(opened, _JOIN_S))
    (port,) = ask("open_store", range(1), LOOPBACK, len(ranks))
    ask("join", ranks, Meeting(addresses, LOOPBACK, port, shares_gpu=order.device == "cuda"))
    return PipedLaunch(processes, order)


@dataclass(slots=True)
class _InProgress:
    """A task or transfer on its workers."""

    item: Task | Transfer
    waiting: dict[int, int]
    """Number of each report that has not come, and its worker."""
    stints: list[Stint] = field(default_factory=list[Stint])


class PipedWorkers:
    """The workers of one run.

    Args:
        processes: that have joined.
        device_map: who does what.
        clock: its present time is put on the timeline beside the workers' own.
    """

    def __init__(self, processes: PipedProcesses, device_map: DeviceMap, clock: Clock) -> None:
        self._processes = processes
        self._map = device_map
        self._origin_s = time.time() - clock.now_s()
        self._progress: dict[int, _InProgress] = {}
        """By the numbers of reports."""

    @property
    def tracks(self) -> tuple[str, ...]:
        """The track of every worker."""
        return tuple(device_track(device) for device in self._map.plan.devices)

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, or a transfer on the group that receives it."""
        if isinstance(item, Task):
            ranks, method, group = self._map.group_ranks(item.group), "run", "work"
        else:
            ranks, method, group = self._map.group_ranks(item.target_group), "prefetch", "data"
        waiting = {self._processes.call(rank, group, method, item): rank for rank in ranks}
        self._progress |= dict.fromkeys(waiting, _InProgress(item, waiting))

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next on all its workers."""
        until_s = time.monotonic() + deadline_s
        while True:
            number = self._processes.first(self._progress, until_s - time.monotonic())
            progress = self._progress.pop(number)
            report = self._processes.report(number)
            rank = progress.waiting.pop(number)
            measured: Mapping[str, Any] = report.value or {}
            progress.stints.append(
                Stint(
                    self.tracks[rank],
                    report.start_s - self._origin_s,
                    report.end_s - self._origin_s,
                    dict(measured),
                )
            )
            if not progress.waiting:
                return Outcome(progress.item, progress.stints)

    def finish(self, iteration: int) -> None:
        """Lets all workers drop what was made in an iteration."""
        self._all("control", "finish", iteration, deadline_s=_JOIN_S)

    def ask(
        self, method: str, *arguments: Any, deadline_s: float, beside: bool = False
    ) -> list[Any]:
        """Runs a method on every worker; one answer each, in order of devices."""
        group = "control" if beside else "work"
        return self._all(group, "ask", method, arguments, deadline_s=deadline_s)

    def close(self) -> None:
        """Leaves the processes for the next run; whoever made them ends them."""

    def _all(self, group: str, method: str, *arguments: Any, deadline_s: float) -> list[Any]:
        ranks = range(len(self._processes))
        calls = [self._processes.call(rank, group, method, *arguments) for rank in ranks]
        return self._processes.values(calls, deadline_s)
