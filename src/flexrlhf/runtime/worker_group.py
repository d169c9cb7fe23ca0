"""Where tasks run: a group of workers that carries out one task at a time."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import ConfigError, RunFailed, WorkerLost
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.measurements import Measurements


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task that ended."""

    task: Task
    start_s: float
    end_s: float
    measurements: Measurements
    error: BaseException | None = None


class TaskRunner(Protocol):
    """Whatever carries out tasks: a worker, for one."""

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        ...


class WorkerGroup(Protocol):
    """Carries out tasks and calls on workers that hold the same roles."""

    name: str

    def submit(self, task: Task) -> None:
        """Starts a task; the group must be idle."""
        ...

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for the submitted task; raises WorkerLost after `deadline_s` seconds."""
        ...

    def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Runs a method of the workers between tasks and returns its result."""
        ...

    def close(self) -> None:
        """Stops the workers."""
        ...


class InProcessGroup:
    """One worker in a thread of this process, so that every wait on it has a deadline.

    Args:
        name: the group's name in graphs.
        worker: the worker.
        clock: gives the times of spans.
    """

    def __init__(self, name: str, worker: TaskRunner, clock: Clock) -> None:
        self.name = name
        self._worker = worker
        self._clock = clock
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"worker-{name}", daemon=True)
        self._doing = "nothing"
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Starts a task; the group must be idle."""
        self._doing = f"task {task.name} of iteration {task.iteration + 1}"
        self._work.put(lambda: self._results.put(self._carry_out(task)))

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for the submitted task.

        Raises:
            WorkerLost: it did not end within `deadline_s` seconds.
        """
        return self._wait(deadline_s)

    def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Runs a method of the worker between tasks and returns its result.

        Raises:
            WorkerLost: it did not end within `deadline_s` seconds.
        """
        self._doing = method

        def work() -> None:
            try:
                self._results.put((getattr(self._worker, method)(*arguments), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
                self._results.put((None, _failure(error)))

        self._work.put(work)
        result, error = self._wait(deadline_s)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Lets the thread end after its present work, and waits a moment for it."""
        self._work.put(None)
        self._thread.join(timeout=10.0)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _carry_out(self, task: Task) -> Outcome:
        start_s = self._clock.now_s()
        try:
            measurements = self._worker.run(task)
        except BaseException as error:  # noqa: BLE001 - reported with role and task by the executor
            return Outcome(task, start_s, self._clock.now_s(), {}, _failure(error))
        return Outcome(task, start_s, self._clock.now_s(), measurements)

    def _wait(self, deadline_s: float) -> Any:
        try:
            return self._results.get(timeout=min(deadline_s, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise WorkerLost(
                f"Worker {self.name!r} has been busy with {self._doing} for {deadline_s:g} s:\n"
                f"{self._stack()}",
                "Every task must end before run.task_deadline_s.",
                "Look at the stack above: a reward function that waits, or a deadline too short?",
            ) from None

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or -1)
        return "".join(traceback.format_stack(frame)) if frame else "(the worker has ended)"


def _failure(error: BaseException) -> BaseException:
    """Returns the error for a run that has begun: wrong input is then a failed run."""
    if isinstance(error, ConfigError):
        failure = RunFailed(error.wrong, error.right, error.do)
        failure.__cause__ = error
        return failure
    return error
