from __future__ import annotations

import heapq

import pytest

from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.events import (
    FinishIteration,
    GraphSubmitted,
    StartTask,
    StartTransfer,
    StopRun,
    TaskFinished,
    TransferFinished,
)
from flexrlhf.planning.workflow.scheduler import Scheduler


class VirtualRun:
    """Carries out a scheduler's actions on a virtual clock, as a simulator would.

    Durations are by operation or kind, or by (name, iteration) for a single one. Spans go to one
    track per group; transfers to the track of the group that receives them.
    """

    def __init__(self, graphs, durations, *, num_in_flight, start_iteration=0):
        self.log = []
        self.scheduler = Scheduler(start_iteration, log=self.log)
        self.actions = []
        self.now_s = 0.0
        self._graphs = list(graphs)
        self._durations = durations
        self._heap = []
        self._num_started = 0
        self.timeline = Timeline([group.name for group in self._graphs[0].groups])
        for _ in range(min(num_in_flight, len(self._graphs))):
            self._submit_next()
        while self._heap:
            self.now_s, _, event = heapq.heappop(self._heap)
            self._handle(event)

    def span(self, name, iteration=0):
        (found,) = (s for s in self.timeline.spans if (s.name, s.iteration) == (name, iteration))
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

    def _submit_next(self):
        if self._graphs:
            self._handle(GraphSubmitted(self._graphs.pop(0)))

    def _handle(self, event):
        actions = self.scheduler.handle(event)
        self.scheduler.validate()
        self.actions += actions
        for action in actions:
            match action:
                case StartTask(task):
                    self._begin(task, task.operation, task.group, task.stage, task.role, None)
                case StartTransfer(transfer):
                    stage = "sync" if transfer.kind == "weights" else "score"
                    group = transfer.target_group
                    self._begin(transfer, transfer.kind, group, stage, None, transfer.kind)
                case FinishIteration():
                    self._submit_next()
                case StopRun():
                    raise AssertionError(action)

    def _begin(self, item, duration_key, group, stage, role, transfer):
        usual_s = self._durations[duration_key]
        end_s = self.now_s + self._durations.get((item.name, item.iteration), usual_s)
        self.timeline.append(
            Span(item.name, group, stage, role, self.now_s, end_s, item.iteration, transfer)
        )
        finished = TaskFinished if transfer is None else TransferFinished
        self._num_started += 1
        event = finished(item.name, item.iteration)
        heapq.heappush(self._heap, (end_s, self._num_started, event))


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
