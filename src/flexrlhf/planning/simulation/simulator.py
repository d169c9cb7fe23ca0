"""Runs task graphs on a virtual clock, under the scheduler that also drives real runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from flexrlhf.planning.simulation.activity import Activity
from flexrlhf.planning.simulation.event_heap import TASK, TRANSFER, EventHeap
from flexrlhf.planning.simulation.shared_cores import SharedCores
from flexrlhf.planning.simulation.shared_links import SharedLinks
from flexrlhf.planning.simulation.simulation import Finish, Simulation
from flexrlhf.planning.simulation.steady_state import Running, StateHistory, Window, mean_window
from flexrlhf.planning.workflow.binding import Durations, TaskTime, TransferTime
from flexrlhf.planning.workflow.events import (
    Event,
    FinishIteration,
    GraphSubmitted,
    StartTask,
    StartTransfer,
    TaskFinished,
    TransferFinished,
)
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.scheduler import Scheduler

MOST_ITERATIONS: Final = 64
"""Iterations after which a run that does not repeat is no longer watched. Few take long: those with
two bottlenecks so alike that the lesser one rules at first."""


def simulate(
    graph_of: Callable[[int], Graph],
    durations: Durations,
    *,
    num_in_flight: int = 1,
    sync_every: int = 1,
    iterations: int | None = None,
    start_iteration: int = 0,
    scheduler: Scheduler | None = None,
    slowdown: Callable[[int], float] | None = None,
) -> Simulation:
    """Returns when everything starts and ends if it takes as long as `durations` say.

    A task occupies its group from start to end. A transfer occupies its links until everything is
    sent, at a max-min fair rate that changes whenever another one starts or ends there; the last of
    it arrives its latency later. With `slowdown` tasks of different groups hold each other up while
    they run at one time, as processes that share cores do. The next iteration is submitted at the
    moment at which one finishes. At equal times transfers end before tasks, and then what was
    started first ends first.

    Without `iterations` the run is watched until it repeats, and what goes on then is cut off: a
    synchronous run for one iteration, a pipelined one until an iteration finishes in a state in
    which an earlier one did; of one that has not repeated after `MOST_ITERATIONS` the latter half
    counts. That needs iterations that are alike.

    Args:
        graph_of: makes the graph of an iteration.
        durations: of its tasks and transfers; they may depend on the iteration where `iterations`
            are given.
        num_in_flight: iterations that are submitted at a time: `IterationShape.num_in_flight`.
        sync_every: iterations whose numbers differ by a multiple of this are alike:
            `IterationShape.sync_every`.
        iterations: how many the run has, all of which are carried out to the end.
        start_iteration: the number of the first.
        scheduler: a new one that begins with `start_iteration`; made here unless given.
        slowdown: of work on so many devices at one time, in the measure of `durations`, which
            count the devices of a task's own group already; none unless given.

    Raises:
        ValueError: a duration is negative or not finite, a transfer names an unknown link, or there
            is not even one iteration, or one in flight.
    """
    if num_in_flight < 1 or (iterations is not None and iterations < 1):
        raise ValueError(
            f"iterations = {iterations} and num_in_flight = {num_in_flight}; each is at least 1."
        )
    scheduler = scheduler or Scheduler(start_iteration)
    run = _Run(graph_of, durations, scheduler, start_iteration, slowdown)
    if iterations is None:
        history = StateHistory(start_iteration, sync_every)
        window = run.watch(num_in_flight, history, MOST_ITERATIONS)
    else:
        window = None
        run.complete(num_in_flight, iterations)
    finishes = run.finishes
    if window is None:
        window = mean_window(
            [finish.time_s for finish in finishes],
            start_iteration=start_iteration,
            num_warm_up=len(finishes) // 2 if iterations is None else 2 * (num_in_flight - 1),
            num_last=0 if iterations is None else num_in_flight - 1,
        )
    return Simulation(
        graphs=tuple(run.graphs),
        activities=run.activities(),
        finishes=tuple(finishes),
        window=window,
        num_in_flight=num_in_flight,
        capacities=durations.links,
        link_loads=run.links.loads,
    )


class _Run:
    """The clock, and everything that was started."""

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        durations: Durations,
        scheduler: Scheduler,
        start_iteration: int,
        slowdown: Callable[[int], float] | None = None,
    ) -> None:
        self.graphs: list[Graph] = []
        self.finishes: list[Finish] = []
        self.links = SharedLinks(durations.links)
        self._graph_of = graph_of
        self._durations = durations
        self._scheduler = scheduler
        self._start_iteration = start_iteration
        self._heap = EventHeap()
        self._cores = None if slowdown is None else SharedCores(slowdown)
        self._now_s = 0.0
        self._cause: int | None = None
        self._items: list[Task | Transfer] = []
        self._times: list[TaskTime | TransferTime] = []
        self._starts_s: list[float] = []
        self._causes: list[int | None] = []
        self._ends_s: dict[int, float] = {}
        self._started: dict[int, list[str]] = {}
        """Names per iteration that is not finished, in the order of starting."""

    def complete(self, num_in_flight: int, iterations: int) -> None:
        """Carries out a number of iterations to their end."""
        while len(self.finishes) < iterations:
            if len(self.graphs) < min(iterations, len(self.finishes) + num_in_flight):
                self._submit_next()
            else:
                self._end_next()

    def watch(
        self, num_in_flight: int, history: StateHistory, most_iterations: int
    ) -> Window | None:
        """Carries out iterations until they repeat, or so many have finished."""
        while len(self.finishes) < most_iterations:
            num_finished = len(self.finishes)
            if len(self.graphs) < num_finished + num_in_flight:
                self._submit_next()
            else:
                self._end_next()
            if len(self.finishes) > num_finished:
                window = history.find(
                    self.finishes[-1].iteration,
                    self._now_s,
                    started=self._started,
                    running=self._running(),
                )
                if window is not None:
                    return window
        return None

    def activities(self) -> tuple[Activity, ...]:
        """Returns everything that was started, in that order; cut off now where it goes on."""
        ends_s = self._ends_s
        now_s = self._now_s
        return tuple(
            Activity(item, time, start_s, ends_s.get(number, now_s), cause)
            for number, (item, time, start_s, cause) in enumerate(
                zip(self._items, self._times, self._starts_s, self._causes, strict=True)
            )
        )

    def _running(self) -> list[Running]:
        """Returns what goes on, in the order of starting."""
        return [
            Running(
                self._items[number].iteration,
                self._items[number].name,
                is_sending=number in self.links,
                rest_s=end_s - self._now_s,
            )
            for number, end_s in self._heap.ends.items()
        ]

    def _submit_next(self) -> None:
        graph = self._graph_of(self._start_iteration + len(self.graphs))
        self.graphs.append(graph)
        self._started[graph.iteration] = []
        self._handle(GraphSubmitted(graph))

    def _end_next(self) -> None:
        """Goes on to the next end, and carries out what follows from it."""
        self._now_s, number = self._heap.pop()
        item, time = self._items[number], self._times[number]
        if number in self.links:
            self._reschedule(self.links.end(number, self._now_s))
            assert isinstance(time, TransferTime)
            if time.latency_s > 0:
                self._heap.schedule(number, self._now_s + time.latency_s, TRANSFER)
                return
        self._ends_s[number] = self._now_s
        self._cause = number
        if self._cores is not None and isinstance(item, Task):
            self._reschedule(self._cores.end(number, self._now_s), TASK)
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        self._handle(finished(item.name, item.iteration))

    def _handle(self, event: Event) -> None:
        for action in self._scheduler.handle(event):
            if isinstance(action, StartTask):
                self._start_task(action.task)
            elif isinstance(action, StartTransfer):
                self._start_transfer(action.transfer)
            else:
                assert isinstance(action, FinishIteration), "nothing fails on a virtual clock"
                self.finishes.append(Finish(action.iteration, self._now_s, self._cause))
                del self._started[action.iteration]

    def _start_task(self, task: Task) -> None:
        time = self._durations.task_time(task)
        total_s = time.compute_s + time.communication_s
        if not (time.compute_s >= 0 and time.communication_s >= 0 and total_s < math.inf):
            raise ValueError(f"{task.name!r} takes {time.compute_s} + {time.communication_s} s.")
        number = self._start(task, time)
        if self._cores is None:
            self._heap.schedule(number, self._now_s + total_s, TASK)
            return
        devices = self._num_devices(task)
        self._reschedule(self._cores.start(number, devices, total_s, self._now_s), TASK)

    def _num_devices(self, task: Task) -> int:
        groups = self.graphs[0].groups
        return next(len(group.devices) for group in groups if group.name == task.group)

    def _start_transfer(self, transfer: Transfer) -> None:
        time = self._durations.transfer_time(transfer)
        if not (0 <= time.num_bytes < math.inf and 0 <= time.latency_s < math.inf):
            raise ValueError(
                f"{transfer.name!r} moves {time.num_bytes} bytes after {time.latency_s} s."
            )
        number = self._start(transfer, time)
        if time.links and time.num_bytes:
            ends = self.links.start(number, time.links, time.num_bytes, self._now_s)
            self._reschedule(ends)
        else:
            self._heap.schedule(number, self._now_s + time.latency_s, TRANSFER)

    def _start(self, item: Task | Transfer, time: TaskTime | TransferTime) -> int:
        self._items.append(item)
        self._times.append(time)
        self._starts_s.append(self._now_s)
        self._causes.append(self._cause)
        self._started[item.iteration].append(item.name)
        return len(self._items) - 1

    def _reschedule(self, ends_s: dict[int, float], kind: int = TRANSFER) -> None:
        for number, end_s in ends_s.items():
            self._heap.schedule(number, end_s, kind)
