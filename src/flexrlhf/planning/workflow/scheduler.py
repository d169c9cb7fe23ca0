"""Turns events into actions: what starts when everything it waits for is there.

The scheduler has no clock, thread, socket or device. The simulator and the executor drive the same
one: they tell it what ended, and carry out what it answers.

A task starts when its tasks and transfers are done, its weights are there and no group that shares
a device with its own is at work. Where several could, the first in this order does: the earlier
iteration; in it the later stage, so that samples leave a group as soon as they can; in it the order
of the graph. A transfer starts as soon as its sources are done. A barrier that is held starts when
it is no longer, and thereby all that waits for it.
"""

from __future__ import annotations

from collections.abc import MutableSequence

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
from flexrlhf.planning.workflow.flight import Flight
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup
from flexrlhf.planning.workflow.ready import ReadyTasks
from flexrlhf.planning.workflow.weight_versions import WeightVersions


class Scheduler:
    """The state of the iterations in flight.

    Args:
        start_iteration: the first iteration to come; all weights then have that version.
        log: where every event is noted before it is handled; a new scheduler that handles them
            again gives the same actions.
    """

    def __init__(
        self, start_iteration: int = 0, *, log: MutableSequence[Event] | None = None
    ) -> None:
        self.versions = WeightVersions(start_iteration)
        self._log = log
        self._next_iteration = start_iteration
        self._groups: tuple[DeviceGroup, ...] = ()
        self._rivals: dict[str, frozenset[str]] = {}
        self._flights: dict[int, Flight] = {}
        self._ready = ReadyTasks()
        self._due: list[Transfer] = []
        self._running: dict[tuple[int, str], Task | Transfer] = {}
        self._busy: set[str] = set()
        self._failed: set[tuple[int, str]] = set()
        self._stop: StopRun | None = None
        self._held_from: int | None = None

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Iterations that were submitted and are not finished."""
        return tuple(self._flights)

    @property
    def running(self) -> tuple[Task | Transfer, ...]:
        """What was started and has not ended, in the order of starting."""
        return tuple(self._running.values())

    @property
    def at_barrier(self) -> tuple[int, ...]:
        """Iterations that have done all they may while their barrier is held, in order."""
        return tuple(sorted(task.iteration for task in self._ready if self._is_held(task)))

    @property
    def is_stopped(self) -> bool:
        """Whether something failed; nothing starts any more."""
        return self._stop is not None

    def handle(self, event: Event) -> list[Action]:
        """Takes in one event and returns what is to be done now, in this order.

        Raises:
            ValueError: the event does not fit the state: a task that does not run has ended, a
                graph is not that of the next iteration, or a barrier to be held has begun.
        """
        if self._log is not None:
            self._log.append(event)
        match event:
            case TaskFinished(name, iteration) | TransferFinished(name, iteration):
                self._finish(name, iteration)
            case GraphSubmitted(graph, done):
                self._submit(graph, done)
            case BarriersHeld(first):
                self._hold(first)
            case TaskFailed(name, iteration, reason) | TransferFailed(name, iteration, reason):
                return self._fail(name, iteration, reason)
        actions: list[Action] = []
        actions += self._finished_iterations()
        if self._stop is None:
            actions += self._started_transfers()
            actions += self._started_tasks()
            self._check_progress()
        return actions

    def validate(self) -> None:
        """Checks the whole state, at a cost that only tests should pay.

        Raises:
            AssertionError: the scheduler itself is wrong.
        """
        for group in self._busy:
            assert self._rivals[group] & self._busy == {group}, f"{group} shares a busy device"
        tasks = [item for item in self._running.values() if isinstance(item, Task)]
        assert not any(map(self._is_held, tasks))
        assert sorted(task.group for task in tasks) == sorted(self._busy)
        for task in tasks:
            if task.weights == "installed":
                assert task.weight_version is not None
                assert self.versions.installed(task.group) >= task.weight_version
        ready = {(task.iteration, task.name) for task in self._ready}
        due = {(transfer.iteration, transfer.name) for transfer in self._due}
        begun = self._failed.union(self._running)
        for iteration, flight in self._flights.items():
            flight.validate(
                {name for number, name in begun if number == iteration},
                {name for number, name in ready | due if number == iteration},
            )

    def _submit(self, graph: Graph, done: frozenset[str]) -> None:
        if graph.iteration != self._next_iteration:
            raise ValueError(f"Iteration {self._next_iteration} is next, not {graph.iteration}.")
        if self._groups and graph.groups != self._groups:
            raise ValueError(f"Iteration {graph.iteration} has other groups than the run.")
        if not self._groups:
            self._groups = graph.groups
            self._rivals = _rivals(graph.groups)
        flight = Flight(graph, done)
        self._next_iteration += 1
        self._flights[graph.iteration] = flight
        self.versions.submit(graph, done)
        for item in flight.unblocked():
            self._enqueue(item)

    def _hold(self, first: int | None) -> None:
        for iteration, flight in self._flights.items():
            begun = {name for number, name in self._running if number == iteration}
            if first is not None and iteration >= first and flight.has_passed_barrier(begun):
                raise ValueError(f"The barrier of iteration {iteration} has begun already.")
        self._held_from = first

    def _is_held(self, task: Task) -> bool:
        first = self._held_from
        return task.is_barrier and first is not None and task.iteration >= first

    def _finish(self, name: str, iteration: int) -> None:
        item = self._end(name, iteration)
        if isinstance(item, Task):
            self.versions.finish(item)
        for follower in self._flights[iteration].finish(name):
            self._enqueue(follower)

    def _fail(self, name: str, iteration: int, reason: str) -> list[Action]:
        self._end(name, iteration)
        self._failed.add((iteration, name))
        if self._stop is not None:
            return []
        self._stop = StopRun(f"{name} of iteration {iteration} failed: {reason}")
        return [self._stop]

    def _end(self, name: str, iteration: int) -> Task | Transfer:
        item = self._running.pop((iteration, name), None)
        if item is None:
            raise ValueError(f"{name!r} of iteration {iteration} is not running.")
        if isinstance(item, Task):
            self._busy.discard(item.group)
        return item

    def _enqueue(self, item: Task | Transfer) -> None:
        if isinstance(item, Transfer):
            self._due.append(item)
        else:
            self._ready.add(item, self._flights[item.iteration].position(item.name))

    def _finished_iterations(self) -> list[FinishIteration]:
        finished: list[FinishIteration] = []
        while self._flights:
            iteration = next(iter(self._flights))
            if not self._flights[iteration].is_done:
                break
            del self._flights[iteration]
            finished.append(FinishIteration(iteration))
        return finished

    def _started_transfers(self) -> list[StartTransfer]:
        due, self._due = self._due, []
        for transfer in due:
            self._running[transfer.iteration, transfer.name] = transfer
        return [StartTransfer(transfer) for transfer in due]

    def _started_tasks(self) -> list[StartTask]:
        started: list[StartTask] = []
        busy = self._busy
        for task in self._ready.heads():
            if self._is_held(task):
                continue
            if busy.isdisjoint(self._rivals[task.group]) and self.versions.admits(task):
                self._ready.remove(task)
                busy.add(task.group)
                self._running[task.iteration, task.name] = task
                started.append(StartTask(task))
        return started

    def _check_progress(self) -> None:
        """A run that can never end is our mistake, and better said than waited for."""
        if self._flights and not self._running and not self.at_barrier:
            raise RuntimeError(
                f"Nothing runs, though iterations {list(self._flights)} are not finished; "
                f"ready: {[task.name for task in self._ready]}."
            )


def _rivals(groups: tuple[DeviceGroup, ...]) -> dict[str, frozenset[str]]:
    """Per group the groups that share a device with it, itself among them."""
    devices = {group.name: frozenset(group.devices) for group in groups}
    return {
        name: frozenset(other for other, held in devices.items() if not held.isdisjoint(own))
        for name, own in devices.items()
    }
