"""Drives the workers of a run through Ray: control alone, never a tensor."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import FlexError, WorkerLost
from flexrlhf.planning.simulation.spans import device_track
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.ray_cluster.device_host import Failure, Report
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.workers import Outcome, Stint

logger = logging.getLogger(__name__)

_DESCRIBE_S: Final = 5.0
"""How long a worker may take to say what it is at."""


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
        self._processes = processes
        self._map = device_map
        self._origin_s = time.time() - clock.now_s()
        self._progress: dict[tuple[int, str], _InProgress] = {}
        self._item_of: dict[Any, tuple[int, str]] = {}

    @property
    def tracks(self) -> tuple[str, ...]:
        """The track of every worker, in the order of devices."""
        return tuple(device_track(device) for device in self._map.plan.devices)

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, or a transfer on the group that receives it."""
        if isinstance(item, Task):
            ranks, method, group = self._map.group_ranks(item.group), "run", "work"
        else:
            ranks, method, group = self._map.group_ranks(item.target_group), "prefetch", "data"
        key = (item.iteration, item.name)
        waiting = {self._call(rank, method, group, item): rank for rank in ranks}
        self._progress[key] = _InProgress(item, waiting)
        self._item_of.update(dict.fromkeys(waiting, key))

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next on all its workers, or fails on one.

        Raises:
            WorkerLost: nothing did within `deadline_s` seconds, or a worker's process died.
        """
        import ray

        until_s = time.monotonic() + max(0.0, deadline_s)
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            ready, _ = ray.wait(list(self._item_of), num_returns=1, timeout=left_s)
            if not ready:
                raise self._overdue(deadline_s)
            outcome = self._take(ready[0])
            if outcome is not None:
                return outcome

    def finish(self, iteration: int) -> None:
        """Lets all workers drop what was made in an iteration; nobody waits for it."""
        for rank in range(self._map.num_ranks):
            self._call(rank, "finish", "control", iteration)

    def ask(self, method: str, *arguments: Any, deadline_s: float) -> list[Any]:
        """Runs a method on every worker; returns one answer each, in order of devices.

        Raises:
            WorkerLost: one did not answer within `deadline_s` seconds, or died.
            FlexError: of a worker.
        """
        ranks = range(self._map.num_ranks)
        calls = [self._call(rank, "ask", "work", method, arguments) for rank in ranks]
        return gathered(calls, deadline_s, lambda: self._overdue(deadline_s), self._name)

    def close(self) -> None:
        """Leaves the processes for the next run; whoever made them ends them."""

    def _call(self, rank: int, method: str, group: str, *arguments: Any) -> Any:
        handle = self._processes.handles[rank]
        return getattr(handle, method).options(concurrency_group=group).remote(*arguments)

    def _take(self, reference: Any) -> Outcome | None:
        """Takes in one report; returns the outcome if it was the last, or a failure."""
        import ray
        from ray.exceptions import RayError

        key = self._item_of.pop(reference)
        progress = self._progress[key]
        rank = progress.waiting.pop(reference)
        try:
            report: Report = ray.get(reference)
        except RayError as error:
            return self._failed(key, self._died(rank, progress.item, error))
        if report.failure is not None:
            return self._failed(key, self._error(rank, report.failure))
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

    def _failed(self, key: tuple[int, str], error: BaseException) -> Outcome:
        progress = self._progress.pop(key)
        for reference in progress.waiting:
            del self._item_of[reference]
        return Outcome(progress.item, progress.stints, error)

    def _error(self, rank: int, failure: Failure) -> BaseException:
        logger.error("%s failed:\n%s", self._name(rank), failure.stack)
        return failure.error or _Unexpected(f"{self._name(rank)}: {failure.said}")

    def _name(self, rank: int) -> str:
        roles = ", ".join(self._map.roles_of(rank))
        return f"worker {rank} ({roles})"

    def _died(self, rank: int, item: Task | Transfer, error: Exception) -> WorkerLost:
        lost = WorkerLost(
            f"The process of {self._name(rank)} ended while it was at {item.name} of iteration "
            f"{item.iteration + 1}.",
            "A worker lives until the run ends.",
            "Look for a lack of memory (`dmesg`), then go on with --resume.",
        )
        lost.__cause__ = error
        return lost

    def _overdue(self, deadline_s: float) -> WorkerLost:
        said = "\n".join(
            f"{self._name(rank)}: {text}" for rank, text in enumerate(self._descriptions())
        )
        names = ", ".join(progress.item.name for progress in self._progress.values())
        return WorkerLost(
            f"Nothing has ended for {deadline_s:g} s. In progress: {names or 'a call'}.\n{said}",
            "Every task and transfer must end before run.task_deadline_s.",
            "Look at the stacks above: a reward function that waits, a peer that is gone, or a "
            "deadline too short?",
        )

    def _descriptions(self) -> list[str]:
        import ray
        from ray.exceptions import RayError

        calls = [self._call(rank, "describe", "control") for rank in range(self._map.num_ranks)]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_DESCRIBE_S)
        texts: list[str] = []
        for call in calls:
            try:
                texts.append(ray.get(call) if call in ready else "does not answer\n")
            except RayError as error:
                texts.append(f"is gone: {type(error).__name__}\n")
        return texts


class _Unexpected(RuntimeError):
    """An error of a worker that this program does not know."""


def gathered(calls: Sequence[Any], deadline_s: float, overdue: Any, name: Any) -> list[Any]:
    """Returns the values of one report per worker, in order of ranks.

    Raises:
        WorkerLost: one did not come in time, or its process died.
        FlexError: of the first worker that failed.
    """
    import ray
    from ray.exceptions import RayError

    waiting = list(calls)
    until_s = time.monotonic() + deadline_s
    while waiting:
        left_s = max(0.0, until_s - time.monotonic())
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=min(left_s, 1e8))
        if not ready:
            raise overdue()
        rank = calls.index(ready[0])
        try:
            report: Report = ray.get(ready[0])
        except RayError as error:
            raise WorkerLost(
                f"The process of {name(rank)} ended.",
                "A worker lives until the run ends.",
                "Look for a lack of memory (`dmesg`), then go on with --resume.",
            ) from error
        if report.failure is not None:
            logger.error("%s failed:\n%s", name(rank), report.failure.stack)
            if isinstance(report.failure.error, FlexError):
                raise report.failure.error
            raise WorkerLost(
                f"{name(rank)} failed: {report.failure.said}",
                "A worker raises only errors of this program, which say what to do.",
                "Look at the stack in the run folder's log.txt: if it is no fault of yours, "
                "report it.",
            )
    return [report.value for report in ray.get(list(calls))]
