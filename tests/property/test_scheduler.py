from __future__ import annotations

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.events import (
    BarriersHeld,
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
    algorithm_spec("dpo"),
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


def behind_barriers(graph: Graph) -> set[str]:
    """Barriers and all that waits for them, by going on until nothing is added."""
    behind = {task.name for task in graph.tasks if task.is_barrier}
    while True:
        more = {name for name, waited in graph.waits_for().items() if behind.intersection(waited)}
        if more <= behind:
            return behind
        behind |= more


class Witness:
    """Notes what a scheduler starts and ends, and checks it without the scheduler's own books."""

    def __init__(self, shape: IterationShape, graphs: list[Graph]) -> None:
        self.shape = shape
        self.waits_for = {graph.iteration: graph.waits_for() for graph in graphs}
        self.behind = {graph.iteration: behind_barriers(graph) for graph in graphs}
        self.held_from = None
        self.devices = {group.name: set(group.devices) for group in graphs[0].groups}
        self.started: set[tuple[int, str]] = set()
        self.ended: set[tuple[int, str]] = set()
        self.busy: set[int] = set()
        self.installed = defaultdict(lambda: graphs[0].iteration)
        self.finished: list[int] = []

    def start(self, item) -> None:
        key = (item.iteration, item.name)
        assert key not in self.started
        if self.held_from is not None and item.iteration >= self.held_from:
            assert item.name not in self.behind[item.iteration]
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


def carry_out(run, chooser: Random, num_in_flight: int, hold_every: int | None = None):
    """Ends what runs in an order of the chooser's; returns the witness, the log and the actions.

    With `hold_every` barriers are held where a run writes checkpoints, and let go of when the next
    iteration has come to its barrier and some more has ended.
    """
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

    def hold(first):
        witness.held_from = first
        handle(BarriersHeld(first))

    if hold_every is not None:
        hold(graphs[0].iteration + hold_every)
    while waiting or scheduler.in_flight:
        while waiting and len(scheduler.in_flight) < num_in_flight:
            handle(GraphSubmitted(waiting.pop(0)))
        held = witness.held_from
        if held is not None and scheduler.in_flight[0] == held and held in scheduler.at_barrier:
            assert everything_before_the_barrier_is_done(witness, held)
            if not scheduler.running or chooser.random() < 0.3:
                hold(held + hold_every)
                continue
        item = chooser.choice(scheduler.running)
        witness.end(item)
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        handle(finished(item.name, item.iteration))
    return witness, log, actions


def everything_before_the_barrier_is_done(witness: Witness, iteration: int) -> bool:
    ended = {name for number, name in witness.ended if number == iteration}
    return ended == witness.waits_for[iteration].keys() - witness.behind[iteration]


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


@given(
    runs(),
    st.randoms(use_true_random=False),
    st.integers(0, 2),
    st.sampled_from([None, 1, 2]),
)
@settings(max_examples=150, deadline=None)
def test_neither_timing_nor_holds_change_the_version_that_generates(
    run, chooser, num_more, hold_every
):
    shape, graphs = run
    _, _, actions = carry_out(run, chooser, shape.num_in_flight + num_more, hold_every)
    installed = defaultdict(lambda: graphs[0].iteration)
    for action in actions:
        if isinstance(action, StartTask):
            task = action.task
            if task.operation == "install":
                # Exclusive groups: nothing of the group starts before it has ended.
                installed[task.group] = task.weight_version
            elif task.weights == "installed":
                assert installed[task.group] == task.weight_version


@given(runs(), st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_iterations_that_were_held_do_everything_once_and_in_order(
    run, chooser, num_in_flight, hold_every
):
    witness, _, _ = carry_out(run, chooser, num_in_flight, hold_every)
    everything = {
        (iteration, name) for iteration, names in witness.waits_for.items() for name in names
    }
    assert witness.ended == everything
    assert witness.finished == [graph.iteration for graph in run[1]]


@given(runs(), st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_what_was_done_before_a_barrier_is_not_done_again(run, chooser, hold_every):
    """A scheduler that begins with the tasks that another had done at a hold does the rest."""
    _, graphs = run
    first, saved = graphs[0].iteration, graphs[hold_every:]
    if not saved:
        return
    scheduler, ended = Scheduler(first), set()
    for event in (BarriersHeld(first + hold_every), *map(GraphSubmitted, graphs)):
        scheduler.handle(event)
    while scheduler.in_flight[0] != saved[0].iteration or scheduler.at_barrier == ():
        end_one(scheduler, chooser, ended)
    tasks = {graph.iteration: {task.name for task in graph.tasks} for graph in saved}
    done = {k: frozenset(name for n, name in ended if n == k) & tasks[k] for k in tasks}
    again, ended = Scheduler(saved[0].iteration), set()
    for graph in saved:
        again.handle(GraphSubmitted(graph, done[graph.iteration]))
        again.validate()
    while again.in_flight:
        end_one(again, chooser, ended)
    for graph in saved:
        names = {name for number, name in ended if number == graph.iteration}
        assert not names & done[graph.iteration]
        assert names >= tasks[graph.iteration] - done[graph.iteration]
        # Results that were handed over to tasks that are done are not handed over again.
        moved = {t.name for t in graph.transfers if done[graph.iteration].issuperset(t.targets)}
        assert names.isdisjoint(moved)


def end_one(scheduler: Scheduler, chooser: Random, ended: set[tuple[int, str]]) -> None:
    item = chooser.choice(scheduler.running)
    finished = TaskFinished if isinstance(item, Task) else TransferFinished
    scheduler.handle(finished(item.name, item.iteration))
    scheduler.validate()
    ended.add((item.iteration, item.name))


@given(
    runs(),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
)
@settings(max_examples=50, deadline=None)
def test_a_log_replays_to_the_same_actions(run, chooser, num_in_flight, hold_every):
    _, log, actions = carry_out(run, chooser, num_in_flight, hold_every)
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
