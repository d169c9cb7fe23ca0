from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.simulation.shared_links import SharedLinks, fair_rates
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.planning.workflow.shape import IterationShape

SPECS = [
    algorithm_spec("ppo"),
    algorithm_spec("ppo", share_actor_critic=True),
    algorithm_spec("grpo", uses_reference=False),
    algorithm_spec("sft"),
]
LINKS = {"a": 5.0, "b": 2.0, "c": 11.0}

# Multiples of a quarter: many things happen at the same moment.
seconds = st.integers(0, 16).map(lambda quarters: quarters / 4)


def routes(least, most):
    names = st.sampled_from(sorted(LINKS))
    return st.lists(names, min_size=least, max_size=most, unique=True).map(tuple)


class DrawnDurations:
    """Times by name, the same in every iteration."""

    links = LINKS

    def __init__(self, tasks, transfers):
        self._tasks = tasks
        self._transfers = transfers

    def task_time(self, task):
        return self._tasks[hash_of(task.name) % len(self._tasks)]

    def transfer_time(self, transfer):
        return self._transfers[hash_of(transfer.name) % len(self._transfers)]


def hash_of(name):
    """The same in every process, unlike `hash`."""
    return sum(place * ord(letter) for place, letter in enumerate(name, start=1))


@st.composite
def durations(draw):
    tasks = st.builds(TaskTime, compute_s=seconds, communication_s=seconds)
    transfers = st.builds(
        TransferTime, num_bytes=st.integers(0, 40).map(float), links=routes(0, 2), latency_s=seconds
    )
    return DrawnDurations(
        draw(st.lists(tasks, min_size=5, max_size=5)),
        draw(st.lists(transfers, min_size=5, max_size=5)),
    )


@st.composite
def runs(draw):
    """Any algorithm, any devices per role, any cuts; returns a function from iteration to graph."""
    spec = draw(st.sampled_from(SPECS))
    roles = list(spec.roles)
    if spec.generates:
        trained = [role for role in ("actor", "critic") if role in spec.trained]
        roles += [f"shadow_{role}" for role in trained if draw(st.booleans())]
    placement = {}
    for role in roles:
        first = draw(st.integers(0, 3))
        devices = tuple(range(first, draw(st.integers(first, 3)) + 1))
        placement[role] = RolePlacement(devices, data_parallel=len(devices))
    plan = Plan(rank=1, strategy="custom", feasible=True, why="drawn", placement=placement)
    max_staleness = draw(st.integers(0, 2)) if "shadow_actor" in roles else 0
    shape = IterationShape(
        num_samples=8,
        rollout_micro_batches=draw(st.integers(1, 3)),
        mini_batches=draw(st.integers(1, 2)),
        sync_every=draw(st.integers(1, max_staleness + 1)),
        max_staleness=max_staleness,
    )
    return shape, lambda iteration: iteration_graph(spec, plan, shape, iteration)


def completed(run, times, iterations, scheduler=None):
    shape, graph_of = run
    return simulate(
        graph_of,
        times,
        num_in_flight=shape.num_in_flight,
        iterations=iterations,
        scheduler=scheduler,
    )


def key(activity):
    return activity.item.iteration, activity.item.name


def alone_s(activity):
    """How long it takes with all links to itself."""
    time = activity.time
    if isinstance(time, TaskTime):
        return time.compute_s + time.communication_s
    slowest = min((LINKS[link] for link in time.links), default=None)
    return time.latency_s + (time.num_bytes / slowest if slowest else 0.0)


@given(runs(), durations(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_everything_is_done_once_behind_what_it_waits_for(run, times, iterations):
    simulation = completed(run, times, iterations)
    done = {key(activity): activity for activity in simulation.activities}
    assert len(done) == len(simulation.activities)
    waits_for = {
        (graph.iteration, name): [(graph.iteration, earlier) for earlier in awaited]
        for graph in simulation.graphs
        for name, awaited in graph.waits_for().items()
    }
    assert done.keys() == waits_for.keys()
    for name, awaited in waits_for.items():
        for earlier in awaited:
            assert done[earlier].end_s <= done[name].start_s
    for activity in simulation.activities:
        took_s = activity.end_s - activity.start_s
        if isinstance(activity.item, Task):
            assert took_s == pytest.approx(alone_s(activity))
        else:
            assert took_s >= alone_s(activity) * (1 - 1e-9)


@given(runs(), durations(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_device_does_one_task_at_a_time(run, times, iterations):
    simulation = completed(run, times, iterations)
    held = {group.name: group.devices for group in simulation.groups}
    by_device = defaultdict(list)
    for activity in simulation.activities:
        if isinstance(activity.item, Task):
            for device in held[activity.item.group]:
                by_device[device].append((activity.start_s, activity.end_s))
    for stretches in by_device.values():
        for (_, end_s), (start_s, _) in pairwise(sorted(stretches)):
            assert end_s <= start_s


@given(runs(), durations(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_no_run_is_shorter_than_its_bounds(run, times, iterations):
    simulation = completed(run, times, iterations)
    makespan_s = simulation.makespan_s
    rounding = makespan_s * 1e-9

    # The longest chain of data, by time alone on the links.
    longest = {}
    for graph in simulation.graphs:
        alone = {
            activity.item.name: alone_s(activity)
            for activity in simulation.activities
            if activity.item.iteration == graph.iteration
        }
        waits_for = graph.waits_for()
        for name in TopologicalSorter(waits_for).static_order():
            before = max((longest[graph.iteration, e] for e in waits_for[name]), default=0.0)
            longest[graph.iteration, name] = before + alone[name]
    assert makespan_s >= max(longest.values()) - rounding

    # The busiest device.
    held = {group.name: group.devices for group in simulation.groups}
    busy = defaultdict(float)
    for activity in simulation.activities:
        if isinstance(activity.item, Task):
            for device in held[activity.item.group]:
                busy[device] += activity.end_s - activity.start_s
    assert makespan_s >= max(busy.values()) - rounding

    # The critical path is as long as the run, and without gaps.
    path = simulation.critical_path(iterations - 1)
    assert sum(s.end_s - s.start_s for s in path) == pytest.approx(simulation.finishes[-1].time_s)
    assert all(step.end_s == following.start_s for step, following in pairwise(path))
    assert simulation.finishes[-1].time_s == pytest.approx(makespan_s)


@given(runs(), durations(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_links_carry_every_byte_once_and_never_more_than_they_can(run, times, iterations):
    simulation = completed(run, times, iterations)
    num_bytes = dict.fromkeys(LINKS, 0.0)
    for activity in simulation.activities:
        if isinstance(activity.time, TransferTime):
            for link in activity.time.links:
                num_bytes[link] += activity.time.num_bytes
    for link, steps in simulation.link_loads.items():
        assert all(load <= LINKS[link] * (1 + 1e-9) for _, load in steps)
        assert all(earlier < later for (earlier, _), (later, _) in pairwise(steps))
        if steps:
            assert steps[-1][1] == 0.0
        carried = sum(load * (until_s - from_s) for (from_s, load), (until_s, _) in pairwise(steps))
        assert carried == pytest.approx(num_bytes[link])


@given(runs(), durations(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_shares_add_up_and_agree_with_the_devices(run, times, iterations):
    simulation = completed(run, times, iterations)
    shares = simulation.shares()
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert min(shares.values()) >= -1e-12
    for part in simulation.utilization().values():
        assert -1e-12 <= part <= 1 + 1e-9
    if iterations == 1 and simulation.makespan_s > 0:
        timeline = simulation.device_timeline()
        assert timeline.makespan == simulation.makespan_s
        assert timeline.shares(1) == pytest.approx(shares)


@given(runs(), durations(), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_a_run_can_be_told_again(run, times, iterations):
    log = []
    first = completed(run, times, iterations, Scheduler(log=log))
    second_log = []
    second = completed(run, times, iterations, Scheduler(log=second_log))
    assert first == second
    assert log == second_log
    once, again = Scheduler(), Scheduler()
    assert [once.handle(event) for event in log] == [again.handle(event) for event in second_log]


@given(runs(), durations())
@settings(max_examples=60, deadline=None)
def test_a_run_that_repeats_goes_on_repeating(run, times):
    shape, graph_of = run
    watched = simulate(
        graph_of, times, num_in_flight=shape.num_in_flight, sync_every=shape.sync_every
    )
    window = watched.window
    assume(window.repeats and window.last < 12)
    cycle = window.num_iterations
    count = window.last + 1 + 3 * cycle + shape.num_in_flight
    finishes_s = [finish.time_s for finish in completed(run, times, count).finishes]
    assert finishes_s[: window.last + 1] == [finish.time_s for finish in watched.finishes]
    for k in range(1, 4):
        expected_s = window.end_s + k * cycle * watched.iteration_s
        assert finishes_s[window.last + k * cycle] == pytest.approx(expected_s)


flows = st.dictionaries(st.integers(0, 6), routes(1, 3), min_size=1, max_size=7)


@given(flows)
@settings(max_examples=200, deadline=None)
def test_rates_are_max_min_fair(drawn):
    """A flow has a full link on which no other is faster: that, and only that, is max-min fair."""
    rates = fair_rates(drawn, LINKS)
    assert rates.keys() == drawn.keys()
    load = {
        link: sum(rates[number] for number, links in drawn.items() if link in links)
        for link in LINKS
    }
    assert all(load[link] <= LINKS[link] * (1 + 1e-9) for link in LINKS)
    for number, links in drawn.items():
        assert any(
            load[link] >= LINKS[link] * (1 - 1e-9)
            and all(
                rates[other] <= rates[number] * (1 + 1e-9)
                for other, on in drawn.items()
                if link in on
            )
            for link in links
        )


@given(
    st.lists(
        st.tuples(seconds, st.integers(1, 40).map(float), routes(1, 2)),
        min_size=1,
        max_size=7,
    )
)
@settings(max_examples=200, deadline=None)
def test_only_affected_flows_need_new_rates(drawn):
    """The same ends come out if all rates are worked out anew whenever anything changes."""
    links = SharedLinks(LINKS)
    open_starts = sorted((start_s, number) for number, (start_s, _, _) in enumerate(drawn))
    due, ends = {}, {}
    while open_starts or due:
        number = min(due, key=due.__getitem__, default=None)
        if open_starts and (number is None or open_starts[0][0] < due[number]):
            start_s, number = open_starts.pop(0)
            due |= links.start(number, drawn[number][2], drawn[number][1], start_s)
        else:
            ends[number] = due.pop(number)
            due |= links.end(number, ends[number])
    assert ends == pytest.approx(ends_by_recomputing_everything(drawn))


def ends_by_recomputing_everything(drawn):
    rest = {}
    waiting = sorted((start_s, number) for number, (start_s, _, _) in enumerate(drawn))
    ends, now_s = {}, 0.0
    while waiting or rest:
        rates = fair_rates({number: drawn[number][2] for number in rest}, LINKS)
        next_s = min(
            [now_s + num_bytes / rates[number] for number, num_bytes in rest.items()]
            + [start_s for start_s, _ in waiting[:1]]
        )
        for number in list(rest):
            rest[number] -= rates[number] * (next_s - now_s)
            if rest[number] < 1e-9:
                del rest[number]
                ends[number] = next_s
        now_s = next_s
        while waiting and waiting[0][0] <= now_s:
            _, number = waiting.pop(0)
            rest[number] = drawn[number][1]
    return ends
