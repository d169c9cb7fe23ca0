"""Runs task graphs on workers, under the scheduler that also drives the simulator."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from flexrlhf.core.errors import FlexError, WorkerLost
from flexrlhf.core.names import Stage
from flexrlhf.core.timeline import Span
from flexrlhf.planning.workflow.events import (
    Action,
    BarriersHeld,
    Event,
    FinishIteration,
    GraphSubmitted,
    StartTask,
    StartTransfer,
    StopRun,
    TaskFailed,
    TaskFinished,
    TransferFailed,
    TransferFinished,
)
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.runtime.iteration_result import IterationResult
from flexrlhf.runtime.workers import Outcome, Workers

logger = logging.getLogger(__name__)


class Executor:
    """Carries out the scheduler's actions and tells it what came of them.

    Args:
        workers: do the work.
        start_iteration: the first iteration to come, from 0; all weights have that version.
        deadline_s: the longest that one task or transfer may take.
    """

    def __init__(self, workers: Workers, *, start_iteration: int, deadline_s: float) -> None:
        self._workers = workers
        self._deadline_s = deadline_s
        self._scheduler = Scheduler(start_iteration)
        self._results: dict[int, IterationResult] = {}
        self._stages: dict[int, dict[str, Stage]] = {}
        self._started_s: dict[tuple[int, str], float] = {}
        """When each item in progress was started, the oldest first."""
        self._finished: deque[IterationResult] = deque()

    @property
    def unfinished(self) -> list[IterationResult]:
        """What has ended of iterations that are not finished."""
        return list(self._results.values())

    def run(self, graph: Graph) -> IterationResult:
        """Runs one iteration to its end, where no other is in flight.

        Raises:
            WorkerLost: a task raised something unexpected, or did not end before its deadline.
            FlexError: a task raised it.
        """
        self.submit(graph)
        return self.finish_next()

    def submit(self, graph: Graph, begun: IterationResult | None = None) -> None:
        """Lets the next iteration begin as far as weights and groups allow.

        Args:
            graph: what it does.
            begun: what of it was done before this executor, and is not done again.
        """
        result = begun or IterationResult(graph.iteration)
        self._results[graph.iteration] = result
        self._stages[graph.iteration] = {task.name: task.stage for task in graph.tasks}
        self._carry_out(self._scheduler.handle(GraphSubmitted(graph, frozenset(result.done))))

    def hold(self, first_iteration: int) -> None:
        """Holds the barriers from an iteration on, and lets go of those before it."""
        self._carry_out(self._scheduler.handle(BarriersHeld(first_iteration)))

    def reach_barrier(self, iteration: int) -> None:
        """Waits until an iteration that is held has done all that comes before its barrier.

        One that was not submitted is not waited for.

        Raises:
            WorkerLost: a task raised something unexpected, or did not end before its deadline.
            FlexError: a task raised it.
        """
        while iteration in self._scheduler.in_flight:
            if iteration in self._scheduler.at_barrier:
                return
            self._take_next()

    def finish_next(self) -> IterationResult:
        """Returns the oldest iteration in flight when it is finished.

        Raises:
            WorkerLost: a task raised something unexpected, or did not end before its deadline.
            FlexError: a task raised it.
        """
        while not self._finished:
            self._take_next()
        return self._finished.popleft()

    def _take_next(self) -> None:
        """Waits for whatever ends next, and carries out what follows from it."""
        oldest_s = next(iter(self._started_s.values()))
        outcome = self._workers.collect(oldest_s + self._deadline_s - time.monotonic())
        self._note(outcome)
        actions = self._scheduler.handle(_event(outcome))
        if any(isinstance(action, StopRun) for action in actions):
            raise _failure(outcome)
        self._carry_out(actions)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case StartTask(item) | StartTransfer(item):
                    self._started_s[item.iteration, item.name] = time.monotonic()
                    self._workers.start(item)
                case FinishIteration(iteration):
                    self._workers.finish(iteration)
                    del self._stages[iteration]
                    self._finished.append(self._results.pop(iteration))
                case StopRun():
                    raise AssertionError("the failed item is known where its outcome is")

    def _note(self, outcome: Outcome) -> None:
        item = outcome.item
        del self._started_s[item.iteration, item.name]
        result = self._results[item.iteration]
        result.measurements += [stint.measurements for stint in outcome.stints]
        result.spans += _spans(outcome, self._stages[item.iteration])
        if isinstance(item, Task):
            result.done.append(item.name)


def _event(outcome: Outcome) -> Event:
    item, is_task = outcome.item, isinstance(outcome.item, Task)
    if outcome.error is None:
        ended = TaskFinished if is_task else TransferFinished
        return ended(item.name, item.iteration)
    failed = TaskFailed if is_task else TransferFailed
    return failed(item.name, item.iteration, str(outcome.error))


def _failure(outcome: Outcome) -> BaseException:
    """Returns what a failed item's error means to the user, with role and task."""
    error = outcome.error
    if isinstance(error, FlexError):
        return error
    item = outcome.item
    kind = "Task" if isinstance(item, Task) else "Transfer"
    logger.error("%s %s failed", kind.lower(), item.name, exc_info=error)
    lost = WorkerLost(
        f"{kind} {item.name} of iteration {item.iteration + 1} failed: "
        f"{type(error).__name__}: {error}",
        "A task raises only errors of this program, which say what to do.",
        "Look at the stack in the run folder's log.txt: if it is no fault of yours, report it.",
    )
    lost.__cause__ = error
    return lost


def _spans(outcome: Outcome, stages: dict[str, Stage]) -> list[Span]:
    """Returns one span per worker; a transfer belongs to the stage that waits for it."""
    item = outcome.item
    if isinstance(item, Transfer):
        stage, role, moved = stages[item.targets[0]], None, item.kind
    else:
        stage, role, moved = item.stage, item.role, None
    return [
        Span(
            name=item.name,
            track=stint.track,
            stage=stage,
            role=role,
            start_s=stint.start_s,
            end_s=stint.end_s,
            iteration=item.iteration + 1,
            transfer=moved,
        )
        for stint in outcome.stints
    ]
