"""Workers in threads of this process: one per group, so that every wait on it has a deadline."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import WorkerLost
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.measurements import Measurements
from flexrlhf.runtime.workers import Outcome, Stint, failure_in_run

_LEAVE_S: Final = 10.0
"""How long a thread that is told to end may take for its present work."""


class TaskRunner(Protocol):
    """Whatever carries out tasks: a worker, for one."""

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        ...


class InProcessWorkers:
    """One worker per group, each in a thread of its own.

    Args:
        workers: by the name of their group, which is also their track.
        clock: gives the times of spans.
    """

    def __init__(self, workers: Mapping[str, TaskRunner], clock: Clock) -> None:
        self._clock = clock
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._threads = {name: _Thread(name, worker) for name, worker in workers.items()}

    @property
    def tracks(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(self._threads)

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, which must be idle; threads need no transfers."""
        if isinstance(item, Transfer):
            now_s = self._clock.now_s()
            self._outcomes.put(Outcome(item, [Stint(item.target_group, now_s, now_s)]))
            return
        thread = self._threads[item.group]
        doing = f"task {item.name} of iteration {item.iteration + 1}"
        thread.do(doing, lambda: self._outcomes.put(self._carry_out(thread.worker, item)))

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next.

        Raises:
            WorkerLost: nothing did within `deadline_s` seconds.
        """
        try:
            return self._outcomes.get(timeout=min(max(0.0, deadline_s), threading.TIMEOUT_MAX))
        except queue.Empty:
            raise self._overdue(deadline_s) from None

    def finish(self, iteration: int) -> None:
        """Nothing is kept of an iteration; the next one replaces it."""

    def ask(
        self,
        method: str,
        *arguments: Any,
        deadline_s: float,
        beside: bool = False,  # noqa: ARG002 - a thread does one thing at a time
    ) -> list[Any]:
        """Runs a method of every worker between tasks and returns the results.

        Raises:
            WorkerLost: one did not end within `deadline_s` seconds.
        """
        results: list[Any] = []
        for thread in self._threads.values():
            answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
            thread.do(method, _asking(answers, thread.worker, method, arguments))
            try:
                result, error = answers.get(timeout=min(deadline_s, threading.TIMEOUT_MAX))
            except queue.Empty:
                raise self._overdue(deadline_s) from None
            if error is not None:
                raise error
            results.append(result)
        return results

    def close(self) -> None:
        """Lets the threads end after their present work, and waits a moment for them."""
        for thread in self._threads.values():
            thread.end()

    def _carry_out(self, worker: TaskRunner, task: Task) -> Outcome:
        start_s = self._clock.now_s()
        try:
            measurements = worker.run(task)
        except BaseException as error:  # noqa: BLE001 - reported with role and task by the executor
            stint = Stint(task.group, start_s, self._clock.now_s())
            return Outcome(task, [stint], failure_in_run(error))
        return Outcome(task, [Stint(task.group, start_s, self._clock.now_s(), measurements)])

    def _overdue(self, deadline_s: float) -> WorkerLost:
        busy = [thread for thread in self._threads.values() if thread.doing]
        stacks = "\n".join(
            f"{thread.doing} on {thread.name!r}:\n{thread.stack()}" for thread in busy
        )
        named = ", ".join(f"worker {thread.name!r} with {thread.doing}" for thread in busy)
        return WorkerLost(
            f"Nothing has ended for {deadline_s:.3g} s. Busy: {named or 'no worker'}.\n{stacks}",
            "Every task must end before run.task_deadline_s.",
            "Look at the stack above: a reward function that waits, or a deadline too short?",
        )


def _asking(
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]],
    worker: TaskRunner,
    method: str,
    arguments: tuple[Any, ...],
) -> Callable[[], None]:
    def work() -> None:
        try:
            answers.put((getattr(worker, method)(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            answers.put((None, failure_in_run(error)))

    return work


class _Thread:
    """A worker and the thread that does its work, one piece after the other."""

    def __init__(self, name: str, worker: TaskRunner) -> None:
        self.name = name
        self.worker = worker
        self.doing = ""
        self._work: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"worker-{name}", daemon=True)
        self._thread.start()

    def do(self, doing: str, work: Callable[[], None]) -> None:
        """Queues a piece of work, which must not raise."""
        self._work.put((doing, work))

    def end(self) -> None:
        """Lets the thread end after its present work, and waits a moment for it."""
        self._work.put(None)
        self._thread.join(timeout=_LEAVE_S)

    def stack(self) -> str:
        """Returns where the thread is."""
        frame = sys._current_frames().get(self._thread.ident or -1)
        return "".join(traceback.format_stack(frame)) if frame else "(the worker has ended)"

    def _serve(self) -> None:
        while (piece := self._work.get()) is not None:
            self.doing, work = piece
            work()
            self.doing = ""
