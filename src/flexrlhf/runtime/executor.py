"""Runs task graphs on worker groups, under the scheduler that also drives the simulator."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexrlhf.core.errors import FlexError, WorkerLost
from flexrlhf.core.timeline import Span
from flexrlhf.planning.workflow.events import (
    FinishIteration,
    GraphSubmitted,
    StartTask,
    StopRun,
    TaskFailed,
    TaskFinished,
)
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.runtime.measurements import Measurements
from flexrlhf.runtime.worker_group import Outcome, WorkerGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IterationResult:
    """What the tasks of an iteration measured, and when they ran."""

    measurements: Sequence[Measurements]
    spans: Sequence[Span]


class Executor:
    """Carries out the scheduler's actions and tells it what came of them.

    Args:
        groups: worker groups by name.
        start_iteration: the first iteration to come, from 0; all weights have that version.
        deadline_s: the longest that one task may take.
    """

    def __init__(
        self, groups: Mapping[str, WorkerGroup], *, start_iteration: int, deadline_s: float
    ) -> None:
        self._groups = groups
        self._deadline_s = deadline_s
        self._scheduler = Scheduler(start_iteration)

    def run(self, graph: Graph) -> IterationResult:
        """Runs one iteration to its end.

        Raises:
            WorkerLost: a task raised something unexpected, or did not end before its deadline.
            FlexError: a task raised it.
        """
        outcomes: list[Outcome] = []
        busy: deque[str] = deque()
        actions = deque(self._scheduler.handle(GraphSubmitted(graph)))
        while True:
            while actions:
                action = actions.popleft()
                if isinstance(action, FinishIteration):
                    return _result(outcomes)
                if isinstance(action, StopRun):
                    raise _failure(outcomes[-1])
                assert isinstance(action, StartTask), "one group has no transfers"
                self._groups[action.task.group].submit(action.task)
                busy.append(action.task.group)
            outcome = self._groups[busy.popleft()].collect(self._deadline_s)
            outcomes.append(outcome)
            actions.extend(self._scheduler.handle(_event(outcome)))


def _event(outcome: Outcome) -> TaskFinished | TaskFailed:
    task = outcome.task
    if outcome.error is None:
        return TaskFinished(task.name, task.iteration)
    return TaskFailed(task.name, task.iteration, str(outcome.error))


def _failure(outcome: Outcome) -> BaseException:
    """Returns what a failed task's error means to the user, with role and task."""
    error = outcome.error
    if isinstance(error, FlexError):
        return error
    task = outcome.task
    logger.error("task %s failed", task.name, exc_info=error)
    lost = WorkerLost(
        f"Task {task.name} of iteration {task.iteration + 1} failed: "
        f"{type(error).__name__}: {error}",
        "A task raises only errors of this program, which say what to do.",
        "Look at the stack in the run folder's log.txt: if it is no fault of yours, report it.",
    )
    lost.__cause__ = error
    return lost


def _result(outcomes: Sequence[Outcome]) -> IterationResult:
    return IterationResult(
        measurements=[outcome.measurements for outcome in outcomes],
        spans=[_span(outcome) for outcome in outcomes],
    )


def _span(outcome: Outcome) -> Span:
    task = outcome.task
    return Span(
        name=task.name,
        track=task.group,
        stage=task.stage,
        role=task.role,
        start_s=outcome.start_s,
        end_s=outcome.end_s,
        iteration=task.iteration + 1,
    )
