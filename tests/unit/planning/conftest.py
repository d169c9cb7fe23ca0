from __future__ import annotations

import pytest

from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.events import StartTask, StartTransfer
from flexrlhf.planning.workflow.scheduler import Scheduler


class CheckedScheduler(Scheduler):
    """Checks its whole state after every event, and notes events and answers."""

    def __init__(self, start_iteration=0):
        self.log = []
        self.actions = []
        super().__init__(start_iteration, log=self.log)

    def handle(self, event):
        actions = super().handle(event)
        self.validate()
        self.actions += actions
        return actions


class FixedDurations:
    """Times by operation or kind, or by (name, iteration) for a single one.

    A number is the compute time of a task, or the latency of a transfer.
    """

    def __init__(self, times, links=None):
        self.links = links or {}
        self._times = times

    def task_time(self, task):
        time = self._time(task, task.operation)
        return time if isinstance(time, TaskTime) else TaskTime(time)

    def transfer_time(self, transfer):
        time = self._time(transfer, transfer.kind)
        return time if isinstance(time, TransferTime) else TransferTime(0.0, latency_s=time)

    def _time(self, item, usual):
        one = self._times.get((item.name, item.iteration))
        return self._times[usual] if one is None else one


class VirtualRun:
    """What a checked scheduler does with the given graphs on a virtual clock."""

    def __init__(self, graphs, durations, *, num_in_flight, start_iteration=0):
        self.scheduler = CheckedScheduler(start_iteration)
        self.simulation = simulate(
            lambda iteration: graphs[iteration - start_iteration],
            FixedDurations(durations),
            num_in_flight=num_in_flight,
            iterations=len(graphs),
            start_iteration=start_iteration,
            scheduler=self.scheduler,
        )
        self.log = self.scheduler.log
        self.actions = self.scheduler.actions
        self.timeline = self.simulation.timeline

    def span(self, name, iteration=0):
        (found,) = (
            activity
            for activity in self.simulation.activities
            if (activity.item.name, activity.item.iteration) == (name, iteration)
        )
        return found

    def started(self, **wanted):
        return [
            action.task
            for action in self.actions
            if isinstance(action, StartTask)
            and all(getattr(action.task, key) == value for key, value in wanted.items())
        ]

    def transfers(self, kind):
        started = [action.transfer for action in self.actions if isinstance(action, StartTransfer)]
        return [transfer for transfer in started if transfer.kind == kind]


@pytest.fixture
def checked_scheduler():
    return CheckedScheduler


@pytest.fixture
def fixed_durations():
    return FixedDurations


@pytest.fixture
def virtual_run():
    return VirtualRun


@pytest.fixture
def place():
    """Makes a plan: `place(actor=[0, 1], ...)`."""

    def make(**devices):
        placement = {
            role: RolePlacement(tuple(held), data_parallel=len(held))
            for role, held in devices.items()
        }
        return Plan(rank=1, strategy="custom", feasible=True, why="asked", placement=placement)

    return make


@pytest.fixture
def two_pools(place):
    """Figure 4a: two devices train, two generate and score."""
    return place(
        actor=[0, 1],
        critic=[0, 1],
        shadow_actor=[2, 3],
        shadow_critic=[2, 3],
        reference=[2, 3],
        reward=[2, 3],
    )


@pytest.fixture
def three_pools(place):
    """Figure 4b: the shadow actor alone, scoring apart from it."""
    return place(
        actor=[0, 1, 2],
        critic=[0, 1, 2],
        reference=[3, 4],
        reward=[3, 4],
        shadow_actor=[5, 6],
        shadow_critic=[3, 4],
    )


@pytest.fixture
def interleaved(place):
    """Figure 3b: reference on one device, reward on the other, actor and critic on both."""
    return place(actor=[0, 1], critic=[0, 1], reference=[0], reward=[1])
