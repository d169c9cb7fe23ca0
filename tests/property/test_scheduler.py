from __future__ import annotations

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.events import (
    FinishIteration,
    GraphSubmitted,
    StartTask,
    StartTransfer,
    TaskFailed,
    TaskFinished,
    TransferFailed,
    TransferFinished,
)
from flexrlhf.planning.workflow.graph import Graph, Task
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.planning.workflow.shape import IterationShape

SPECS = [
    algorithm_spec("ppo"),
    algorithm_spec("ppo", share_actor_critic=True),
    algorithm_spec("grpo", uses_reference=False),
    algorithm_spec("sft"),
    algorithm_spec("reward_model"),
]


@st.composite
def ranges(draw):
    first = draw(st.integers(0, 3))
    return tuple(range(first, draw(st.integers(first, 3)) + 1))


@st.composite
def runs(draw):
    """Graphs of consecutive iterations: any algorithm, any devices per role, any cuts."""
    spec = draw(st.sampled_from(SPECS))
    roles = list(spec.roles)
    if spec.generates:
        trained = [role for role in ("actor", "critic") if role in spec.trained]
        roles += [f"shadow_{role}" for role in trained if draw(st.booleans())]
    placement = {}
    for role in roles:
        devices = draw(ranges())
        placement[role] = RolePlacement(devices, data_parallel=len(devices))
    plan = Plan(rank=1, strategy="custom", feasible=True, why="drawn", placement=placement)
    max_staleness = draw(st.integers(0, 3)) if "shadow_actor" in roles else 0
    shape = IterationShape(
        num_samples=8,
        rollout_micro_batches=draw(st.integers(1, 3)),
        mini_batches=draw(st.integers(1, 2)),
        micro_batches_per_mini_batch=draw(st.integers(1, 2)),
        epochs=draw(st.integers(1, 2)),
        sync_every=draw(st.integers(1, max_staleness + 1)),
        max_staleness=max_staleness,
    )
    start = draw(st.sampled_from([0, 6])) if max_staleness == 0 else 0
    count = draw(st.integers(1, 5))
    return shape, [iteration_graph(spec, plan, shape, start + k) for k in range(count)]


class Witness:
    """Notes what a scheduler starts and ends, and checks it without the scheduler's own books."""

    def __init__(self, shape: IterationShape, graphs: list[Graph]) -> None:
        self.shape = shape
        self.waits_for = {graph.iteration: graph.waits_for() for graph in graphs}
        self.devices = {group.name: set(group.devices) for group in graphs[0].groups}
        self.started: set[tuple[int, str]] = set()
        self.ended: set[tuple[int, str]] = set()
        self.busy: set[int] = set()
        self.installed = defaultdict(lambda: graphs[0].iteration)
        self.finished: list[int] = []

    def start(self, item) -> None:
        key = (item.iteration, item.name)
        assert key not in self.started
        self.started.add(key)
        for earlier in self.waits_for[item.iteration][item.name]:
            assert (item.iteration, earlier) in self.ended
        if isinstance(item, Task):
            devices = self.devices[item.group]
            assert not devices & self.busy
            self.busy |= devices
            if item.weights == "installed":
                assert self.installed[item.group] >= item.weight_version
                assert item.iteration - self.installed[item.group] <= self.shape.max_staleness
            if item.stage == "train" and item.role is not None:
                assert all(
                    (earlier, name) in self.ended
                    for earlier, names in self.waits_for.items()
                    if earlier < item.iteration
                    for name in names
                    if name.startswith(f"optimizer_step/{item.role}/")
                )

    def end(self, item) -> None:
        self.ended.add((item.iteration, item.name))
        if isinstance(item, Task):
            self.busy -= self.devices[item.group]
            if item.operation == "install":
                assert item.weight_version > self.installed[item.group]
                self.installed[item.group] = item.weight_version


def carry_out(run, chooser: Random, num_in_flight: int):
    """Ends what runs in an order of the chooser's; returns the witness, the log and the actions."""
    shape, graphs = run
    log, actions = [], []
    scheduler, witness = Scheduler(graphs[0].iteration, log=log), Witness(shape, graphs)
    waiting = list(graphs)

    def handle(event):
        todo = scheduler.handle(event)
        scheduler.validate()
        actions.extend(todo)
        for action in todo:
            match action:
                case StartTask(item) | StartTransfer(item):
                    witness.start(item)
                case FinishIteration(iteration):
                    witness.finished.append(iteration)

    while waiting or scheduler.running:
        while waiting and len(scheduler.in_flight) < num_in_flight:
            handle(GraphSubmitted(waiting.pop(0)))
        item = chooser.choice(scheduler.running)
        witness.end(item)
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        handle(finished(item.name, item.iteration))
    return witness, log, actions


@given(runs(), st.randoms(use_true_random=False), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_any_interleaving_does_everything_once_and_in_order(run, chooser, num_in_flight):
    witness, _, _ = carry_out(run, chooser, num_in_flight)
    everything = {
        (iteration, name) for iteration, names in witness.waits_for.items() for name in names
    }
    assert witness.ended == everything
    assert witness.finished == [graph.iteration for graph in run[1]]
    assert not witness.busy


@given(runs(), st.randoms(use_true_random=False), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_timing_does_not_change_the_version_that_generates(run, chooser, num_more):
    shape, graphs = run
    _, _, actions = carry_out(run, chooser, shape.num_in_flight + num_more)
    installed = defaultdict(lambda: graphs[0].iteration)
    for action in actions:
        if isinstance(action, StartTask):
            task = action.task
            if task.operation == "install":
                # Exclusive groups: nothing of the group starts before it has ended.
                installed[task.group] = task.weight_version
            elif task.weights == "installed":
                assert installed[task.group] == task.weight_version


@given(runs(), st.randoms(use_true_random=False), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_a_log_replays_to_the_same_actions(run, chooser, num_in_flight):
    _, log, actions = carry_out(run, chooser, num_in_flight)
    again = Scheduler(run[1][0].iteration)
    assert [action for event in log for action in again.handle(event)] == actions


@given(runs(), st.randoms(use_true_random=False), st.integers(0, 60))
@settings(max_examples=50, deadline=None)
def test_after_a_failure_nothing_starts_and_the_rest_can_end(run, chooser, num_events):
    _, graphs = run
    scheduler = Scheduler(graphs[0].iteration)
    scheduler.handle(GraphSubmitted(graphs[0]))
    for _ in range(num_events):
        item = chooser.choice(scheduler.running)
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        scheduler.handle(finished(item.name, item.iteration))
        if not scheduler.running:
            return
    item = chooser.choice(scheduler.running)
    failed = TaskFailed if isinstance(item, Task) else TransferFailed
    scheduler.handle(failed(item.name, item.iteration, "gone"))
    while scheduler.running:
        item = chooser.choice(scheduler.running)
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        assert scheduler.handle(finished(item.name, item.iteration)) == []
        scheduler.validate()
