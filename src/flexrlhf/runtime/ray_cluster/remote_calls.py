"""Calls of the processes of a run, each with a deadline, and what it means when one fails.

While anything is waited for, the lives of all processes are watched too: when one ends, the others
may hang in a collective, and that it ended is what the user must hear.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from flexrlhf.core.errors import FlexError, WorkerLost
from flexrlhf.runtime.ray_cluster.device_host import Failure, Report
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.worker_log import RelayedLog, with_place

logger = logging.getLogger(__name__)

_DESCRIBE_S: Final = 5.0
"""How long a worker may take to say what it is at."""
_NOTICE_S: Final = 2.0
"""How long after an error of a worker the end of another's process may become known."""
_LONGEST_S: Final = 1e8
"""Ray takes no larger numbers of seconds."""


class RemoteCalls:
    """Calls of processes by rank.

    Args:
        processes: one per worker.
        name: says who a worker is, for messages.
        doing: says what the workers were told and have not reported.
    """

    def __init__(
        self, processes: RayProcesses, name: Callable[[int], str], doing: Callable[[int], str]
    ) -> None:
        self._members = list(processes.members)
        self._lives = {member.life: rank for rank, member in enumerate(self._members)}
        self._name = name
        self._doing = doing
        self._log = RelayedLog()

    def call(self, rank: int, method: str, group: str, *arguments: Any) -> Any:
        """Begins a call and returns the reference of its report."""
        handle = self._members[rank].handle
        return getattr(handle, method).options(concurrency_group=group).remote(*arguments)

    def first_ready(self, references: Sequence[Any], deadline_s: float) -> Any | None:
        """Returns one that is ready, or None after `deadline_s` seconds.

        Raises:
            WorkerLost: a process ended.
        """
        ready = self.all_ready(references, deadline_s)
        return ready[0] if ready else None

    def all_ready(self, references: Sequence[Any], deadline_s: float) -> list[Any]:
        """Waits until one is ready, and returns all that are by then; none after `deadline_s` s.

        A wait looks at every reference, so taking the ready ones singly would cost their square.

        Raises:
            WorkerLost: a process ended.
        """
        import ray

        timeout_s = min(max(0.0, deadline_s), _LONGEST_S)
        watched = [*self._lives, *references]
        ready, waiting = ray.wait(watched, num_returns=1, timeout=timeout_s)
        if ready and waiting:
            more, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
            ready += more
        for reference in ready:
            if reference in self._lives:
                raise self._ended(self._lives[reference])
        return ready

    def report(self, rank: int, reference: Any) -> Report:
        """Takes in a report that is ready, and writes what its process logged.

        Raises:
            WorkerLost: the process ended, or Ray could not carry the report.
        """
        import ray
        from ray.exceptions import RayError

        try:
            report: Report = ray.get(reference)
        except RayError as error:
            raise self._ended(rank) from error
        self._log.write(rank, report.logged)
        return report

    def values(
        self, calls: Sequence[Any], deadline_s: float, place: Callable[[int], str] | None = None
    ) -> list[Any]:
        """Waits for one report per worker, in order of ranks, and returns the values.

        Args:
            calls: their references.
            deadline_s: for all of them.
            place: says where errors of a worker are from; None leaves them as they are.

        Raises:
            WorkerLost: one did not come in time, or a process ended.
            FlexError: of the first worker that failed.
        """
        reports: dict[int, Report] = {}
        waiting = {call: rank for rank, call in enumerate(calls)}
        until_s = time.monotonic() + deadline_s
        while waiting:
            ready = self.first_ready(list(waiting), until_s - time.monotonic())
            if ready is None:
                raise self.overdue(deadline_s, f"a call of {len(waiting)} workers")
            rank = waiting.pop(ready)
            reports[rank] = self.report(rank, ready)
            if (failure := reports[rank].failure) is not None:
                raise self.error(rank, failure, None if place is None else place(rank))
        return [reports[rank].value for rank in range(len(calls))]

    def error(self, rank: int, failure: Failure, place: str | None) -> FlexError:
        """Returns what a worker's failure means, unless it is that another's process ended."""
        logger.error("%s failed:\n%s", self._name(rank), failure.stack)
        try:
            self.first_ready((), _NOTICE_S)
        except WorkerLost as lost:
            return lost
        if failure.error is not None:
            return failure.error if place is None else with_place(failure.error, place)
        return WorkerLost(
            f"{place or self._name(rank)}: {failure.said}",
            "A worker raises only errors of this program, which say what to do.",
            "Look at the stack in the run folder's log.txt: if it is no fault of yours, report it.",
        )

    def overdue(self, deadline_s: float, in_progress: str) -> WorkerLost:
        """Returns the error after a deadline, with what every worker is at."""
        said = "\n".join(
            f"{self._name(rank)}: told and not reported: {self._doing(rank)}; {text}"
            for rank, text in enumerate(self._descriptions())
        )
        return WorkerLost(
            f"Nothing has ended for {deadline_s:.3g} s. In progress: {in_progress}.\n{said}",
            "Every task and transfer must end before run.task_deadline_s.",
            "Look at the stacks above: a reward function that waits, a peer that is gone, or a "
            "deadline too short?",
        )

    def _ended(self, rank: int) -> WorkerLost:
        number = self._members[rank].process_id
        return WorkerLost(
            f"The process of {self._name(rank)}, number {number}, ended. It was told: "
            f"{self._doing(rank)}.",
            "A worker lives until the run ends.",
            "Look for a lack of memory (`dmesg`), then go on with --resume.",
        )

    def _descriptions(self) -> list[str]:
        import ray
        from ray.exceptions import RayError

        calls = [self.call(rank, "describe", "control") for rank in range(len(self._members))]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_DESCRIBE_S)
        texts: list[str] = []
        for call in calls:
            try:
                texts.append(ray.get(call) if call in ready else "does not answer\n")
            except RayError as error:
                texts.append(f"is gone: {type(error).__name__}\n")
        return texts
