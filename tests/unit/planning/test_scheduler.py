from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.workflow.events import (
    BarriersHeld,
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
from flexrlhf.planning.workflow.graph import Graph, Task
from flexrlhf.planning.workflow.groups import DeviceGroup
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.planning.workflow.shape import IterationShape

PPO = algorithm_spec("ppo")
DURATIONS = {
    "generate": 3.0,
    "logprobs": 0.25,
    "values": 0.25,
    "rewards": 0.25,
    "advantage": 0.5,
    "forward_backward": 1.0,
    "optimizer_step": 0.5,
    "publish": 0.125,
    "install": 0.25,
    "experience": 0.125,
    "weights": 0.5,
}


def graphs_of(plan, shape, count, *, spec=PPO, start=0):
    return [iteration_graph(spec, plan, shape, start + k) for k in range(count)]


def started(actions):
    return [action.task.name for action in actions if isinstance(action, StartTask)]


def run_until(scheduler, actions, name):
    """Ends whatever runs, oldest first, until `name` is running."""
    while name not in [item.name for item in scheduler.running]:
        item = scheduler.running[0]
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        actions += scheduler.handle(finished(item.name, item.iteration))
        scheduler.validate()


# One device


def test_one_device_does_the_tasks_one_by_one_in_the_stated_order(virtual_run):
    shape = IterationShape(4, rollout_micro_batches=2, micro_batches_per_mini_batch=2)
    run = virtual_run(graphs_of(one_device_plan(PPO), shape, 2), DURATIONS, num_in_flight=1)
    order = [
        "generate/0",
        "logprobs/actor/0",
        "values/critic/0",
        "logprobs/reference/0",
        "rewards/reward/0",
        "generate/1",
        "logprobs/actor/1",
        "values/critic/1",
        "logprobs/reference/1",
        "rewards/reward/1",
        "advantage",
        "forward_backward/actor/epoch0/mini0/micro0",
        "forward_backward/actor/epoch0/mini0/micro1",
        "optimizer_step/actor/epoch0/mini0",
        "forward_backward/critic/epoch0/mini0/micro0",
        "forward_backward/critic/epoch0/mini0/micro1",
        "optimizer_step/critic/epoch0/mini0",
        "install/main",
    ]
    assert [task.name for task in run.started()] == order + order
    # 2 x 3 s generating, 8 x 0.25 s scoring, 0.5 s barrier, 4 x 1 s + 2 x 0.5 s training, 0.25 s.
    assert run.timeline.makespan == pytest.approx(2 * 13.75)
    assert run.timeline.shares(1)["bubble"] == pytest.approx(0.0)
    assert run.scheduler.in_flight == ()


def test_weights_advance_with_training_and_are_installed_after_it(virtual_run):
    run = virtual_run(
        graphs_of(one_device_plan(PPO), IterationShape(4), 3), DURATIONS, num_in_flight=1
    )
    assert run.scheduler.versions.installed("main") == 3
    assert run.scheduler.versions.trained("actor") == 3
    assert run.scheduler.versions.trained("critic") == 3


def test_supervised_training_needs_no_install(virtual_run):
    spec = algorithm_spec("sft")
    shape = IterationShape(4, mini_batches=2)
    graphs = graphs_of(one_device_plan(spec), shape, 2, spec=spec)
    run = virtual_run(graphs, DURATIONS | {"prepare": 0.1}, num_in_flight=1)
    assert [task.operation for task in run.started(iteration=1)] == [
        "prepare",
        "forward_backward",
        "optimizer_step",
        "forward_backward",
        "optimizer_step",
    ]


def test_graphs_that_are_submitted_too_early_change_nothing_on_one_device(virtual_run):
    shape = IterationShape(4, rollout_micro_batches=2)
    graphs = graphs_of(one_device_plan(PPO), shape, 4)
    one = virtual_run(graphs, DURATIONS, num_in_flight=1)
    all_at_once = virtual_run(graphs, DURATIONS, num_in_flight=4)
    assert one.started() == all_at_once.started()


# Two groups and more


def test_a_pipelined_graph_over_two_groups(virtual_run, two_pools):
    shape = IterationShape(24, rollout_micro_batches=4, micro_batches_per_mini_batch=2)
    run = virtual_run(graphs_of(two_pools, shape, 3), DURATIONS, num_in_flight=1)
    for k in range(3):
        first_scores = [t for t in run.started(stage="score", iteration=k) if t.micro_batch == 1]
        for score in first_scores:
            assert run.span(score.name, k).start_s < run.span("generate/3", k).end_s
        barrier = run.span("advantage", k)
        assert barrier.start_s >= max(
            run.span(task.name, k).end_s for task in run.started(stage="score", iteration=k)
        )
        trained = [run.span(task.name, k) for task in run.started(stage="train", iteration=k)]
        assert min(span.start_s for span in trained) >= barrier.end_s
    assert [transfer.iteration for transfer in run.transfers("weights")] == [0, 1, 2]
    assert len(run.transfers("experience")) == 3 * 4
    assert [task.iteration for task in run.started(operation="install")] == [0, 1, 2]


def test_synchronous_generation_waits_for_the_new_weights(virtual_run, two_pools):
    run = virtual_run(graphs_of(two_pools, IterationShape(8), 3), DURATIONS, num_in_flight=3)
    for k in (1, 2):
        installed = run.span("install/generate", k - 1)
        assert run.span("generate/0", k).start_s == installed.end_s


def test_at_staleness_1_generation_overlaps_the_training_before(virtual_run, two_pools):
    synchronous = virtual_run(
        graphs_of(two_pools, IterationShape(8), 4), DURATIONS, num_in_flight=1
    )
    shape = IterationShape(8, max_staleness=1)
    pipelined = virtual_run(
        graphs_of(two_pools, shape, 4), DURATIONS, num_in_flight=shape.num_in_flight
    )
    for k in range(3):
        generation = pipelined.span("generate/0", k + 1)
        training = [
            pipelined.span(task.name, k) for task in pipelined.started(stage="train", iteration=k)
        ]
        assert generation.start_s < max(span.end_s for span in training)
        assert generation.end_s > min(span.start_s for span in training)
    assert pipelined.timeline.makespan < synchronous.timeline.makespan
    assert [t.weight_version for t in pipelined.started(operation="generate")] == [0, 0, 1, 2]


@pytest.mark.parametrize("train_s", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("sync_every", "max_staleness"), [(1, 0), (1, 1), (1, 2), (2, 1), (3, 4)])
def test_generation_meets_exactly_the_version_it_names_whatever_the_timing(
    virtual_run, two_pools, train_s, sync_every, max_staleness
):
    shape = IterationShape(
        8, rollout_micro_batches=3, sync_every=sync_every, max_staleness=max_staleness
    )
    run = virtual_run(
        graphs_of(two_pools, shape, 8),
        DURATIONS | {"forward_backward": train_s},
        num_in_flight=shape.num_in_flight,
    )
    installs = [
        (run.span(t.name, t.iteration).end_s, t.weight_version)
        for t in run.started(operation="install")
    ]
    assert len(installs) == 8 // sync_every
    for task in run.started(group="generate"):
        if task.weights == "installed":
            start_s = run.span(task.name, task.iteration).start_s
            installed = max([0, *(version for end_s, version in installs if end_s <= start_s)])
            assert installed == task.weight_version
            assert task.iteration - installed <= max_staleness


def test_an_install_waits_for_a_generation_that_needs_the_old_weights(virtual_run, two_pools):
    shape = IterationShape(8, rollout_micro_batches=4, max_staleness=1)
    run = virtual_run(
        graphs_of(two_pools, shape, 2), DURATIONS | {"forward_backward": 0.1}, num_in_flight=2
    )
    arrived = run.span("weights/train->generate", 0).end_s
    generation_ends = run.span("generate/3", 1).end_s
    assert arrived < generation_ends <= run.span("install/generate", 0).start_s


def test_a_critic_scores_and_trains_only_when_its_training_before_is_done(virtual_run, place):
    plan = place(actor=[0], critic=[1], shadow_actor=[2], reference=[2], reward=[2])
    shape = IterationShape(8, max_staleness=1)
    late = {("batch/mini0/0/actor->critic", 0): 50.0}
    run = virtual_run(
        graphs_of(plan, shape, 2), DURATIONS | late, num_in_flight=shape.num_in_flight
    )
    trained = run.span("optimizer_step/critic/epoch0/mini0", 0).end_s
    assert run.span("samples/0/generate->critic", 1).end_s < trained
    assert run.span("values/critic/0", 1).start_s == trained


def test_three_pools_score_beside_generation(virtual_run, three_pools):
    shape = IterationShape(24, rollout_micro_batches=12)
    run = virtual_run(graphs_of(three_pools, shape, 1), DURATIONS, num_in_flight=1)
    for i in range(12):
        score = run.span(f"logprobs/reference/{i}")
        # Samples leave when the shadow actor's own group is done with them.
        assert score.start_s >= run.span(f"generate/{i}").end_s + DURATIONS["experience"]
    assert run.span("logprobs/reference/0").start_s < run.span("generate/3").end_s


def test_interleaved_reference_and_reward_run_at_the_same_time(virtual_run, interleaved):
    run = virtual_run(graphs_of(interleaved, IterationShape(12), 2), DURATIONS, num_in_flight=1)
    reference, reward = run.span("logprobs/reference/0", 1), run.span("rewards/reward/0", 1)
    assert reference.start_s < reward.end_s
    assert reward.start_s < reference.end_s
    # Actor and critic use both devices, so nothing of theirs overlaps reference or reward.
    for task in run.started(group="actor+critic", iteration=1):
        span = run.span(task.name, 1)
        for other in (reference, reward):
            assert span.end_s <= other.start_s or other.end_s <= span.start_s


def test_iterations_finish_in_order_even_when_weights_arrive_late(virtual_run, two_pools):
    shape = IterationShape(8, sync_every=2, max_staleness=3)
    run = virtual_run(
        graphs_of(two_pools, shape, 6),
        DURATIONS | {"weights": 20.0},
        num_in_flight=shape.num_in_flight,
    )
    finished = [action.iteration for action in run.actions if isinstance(action, FinishIteration)]
    assert finished == list(range(6))


# Events


def test_a_resumed_run_starts_with_the_version_of_its_iteration(virtual_run):
    graphs = graphs_of(one_device_plan(PPO), IterationShape(4), 2, start=5)
    run = virtual_run(graphs, DURATIONS, num_in_flight=1, start_iteration=5)
    finished = [action.iteration for action in run.actions if isinstance(action, FinishIteration)]
    assert finished == [5, 6]
    assert run.scheduler.versions.installed("main") == 7


def test_a_log_replays_to_the_same_actions(virtual_run, three_pools):
    shape = IterationShape(24, rollout_micro_batches=4, max_staleness=1)
    run = virtual_run(graphs_of(three_pools, shape, 3), DURATIONS, num_in_flight=2)
    again = Scheduler()
    assert [action for event in run.log for action in again.handle(event)] == run.actions


def test_a_failed_task_stops_the_run_once_and_lets_the_others_end(three_pools):
    (graph,) = graphs_of(three_pools, IterationShape(8, rollout_micro_batches=2), 1)
    scheduler = Scheduler()
    actions = scheduler.handle(GraphSubmitted(graph))
    run_until(scheduler, actions, "logprobs/reference/0")
    names = [item.name for item in scheduler.running]
    assert len(names) >= 2
    failed = TaskFailed("logprobs/reference/0", 0, "CUDA error")
    assert scheduler.handle(failed) == [
        StopRun("logprobs/reference/0 of iteration 0 failed: CUDA error")
    ]
    assert scheduler.is_stopped
    while scheduler.running:
        item = scheduler.running[0]
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        assert scheduler.handle(finished(item.name, 0)) == []
        scheduler.validate()


def test_a_second_failure_says_nothing_new(two_pools):
    (graph,) = graphs_of(two_pools, IterationShape(8, rollout_micro_batches=2), 1)
    scheduler = Scheduler()
    run_until(scheduler, scheduler.handle(GraphSubmitted(graph)), "scores/0/generate->train")
    (task,) = [item for item in scheduler.running if isinstance(item, Task)]
    assert len(scheduler.handle(TransferFailed("scores/0/generate->train", 0, "timeout"))) == 1
    assert scheduler.handle(TaskFailed(task.name, 0, "too")) == []
    assert scheduler.running == ()


def test_an_iteration_that_ends_after_another_failed_is_still_finished(two_pools):
    shape = IterationShape(8, sync_every=2, max_staleness=1)
    first, second = graphs_of(two_pools, shape, 2)
    scheduler = Scheduler()
    actions = scheduler.handle(GraphSubmitted(first)) + scheduler.handle(GraphSubmitted(second))
    while scheduler.running[-1].name != "optimizer_step/critic/epoch0/mini0":
        item = next(i for i in scheduler.running if (i.name, i.iteration) != ("generate/0", 1))
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        actions += scheduler.handle(finished(item.name, item.iteration))
    assert len(scheduler.handle(TaskFailed("generate/0", 1, "CUDA error"))) == 1
    last = TaskFinished("optimizer_step/critic/epoch0/mini0", 0)
    assert scheduler.handle(last) == [FinishIteration(0)]


def test_events_that_do_not_fit_are_refused():
    first, second = graphs_of(one_device_plan(PPO), IterationShape(4), 2)
    scheduler = Scheduler()
    with pytest.raises(ValueError, match="Iteration 0 is next, not 1"):
        scheduler.handle(GraphSubmitted(second))
    scheduler.handle(GraphSubmitted(first))
    with pytest.raises(ValueError, match="'advantage' of iteration 0 is not running"):
        scheduler.handle(TaskFinished("advantage", 0))
    scheduler.handle(TaskFinished("generate/0", 0))
    with pytest.raises(ValueError, match="'generate/0' of iteration 0 is not running"):
        scheduler.handle(TaskFinished("generate/0", 0))


def test_a_held_barrier_waits_while_all_before_it_goes_on(two_pools):
    shape = IterationShape(8, max_staleness=1)
    graphs = graphs_of(two_pools, shape, 3)
    scheduler = Scheduler()
    actions = scheduler.handle(BarriersHeld(1))
    for graph in graphs:
        actions += scheduler.handle(GraphSubmitted(graph))
    while scheduler.running:
        run_until(scheduler, actions, scheduler.running[-1].name)
        item = scheduler.running[0]
        finished = TaskFinished if isinstance(item, Task) else TransferFinished
        actions += scheduler.handle(finished(item.name, item.iteration))
    assert [a.iteration for a in actions if isinstance(a, FinishIteration)] == [0]
    assert scheduler.at_barrier == (1, 2)  # with the weights that iteration 0 made
    begun = [a.task for a in actions if isinstance(a, StartTask) and a.task.iteration > 0]
    assert {task.stage for task in begun} == {"generate", "score"}
    assert started(scheduler.handle(BarriersHeld(2))) == ["advantage"]
    with pytest.raises(ValueError, match="barrier of iteration 1 has begun already"):
        scheduler.handle(BarriersHeld(1))
    assert scheduler.at_barrier == (2,)
    scheduler.handle(BarriersHeld(None))
    assert scheduler.at_barrier == ()


@pytest.mark.parametrize(
    ("done", "fault"),
    [
        ({"generate/1"}, "no task of this graph"),
        ({"logprobs/reference/0"}, "cannot be done before 'generate/0'"),
    ],
)
def test_what_cannot_have_been_done_is_refused(two_pools, done, fault):
    (graph,) = graphs_of(two_pools, IterationShape(4), 1)
    scheduler = Scheduler()
    with pytest.raises(ValueError, match=fault):
        scheduler.handle(GraphSubmitted(graph, frozenset(done)))
    assert started(scheduler.handle(GraphSubmitted(graph))) == ["generate/0"]


def test_samples_move_again_for_those_that_have_not_scored_them(three_pools):
    (graph,) = graphs_of(three_pools, IterationShape(4), 1)
    (moves,) = [t for t in graph.transfers if "generate/0" in t.sources and len(t.targets) > 1]
    scored, *left = moves.targets
    scheduler = Scheduler()
    done = frozenset({"generate/0", scored})
    actions = scheduler.handle(GraphSubmitted(graph, done))
    scheduler.validate()
    assert StartTransfer(moves) in actions
    run_until(scheduler, actions, "advantage")
    assert scored not in started(actions)
    assert set(left) <= set(started(actions))


def test_the_placement_cannot_change_in_mid_run(two_pools):
    (first,) = graphs_of(two_pools, IterationShape(4), 1)
    (second,) = graphs_of(one_device_plan(PPO), IterationShape(4), 1, start=1)
    scheduler = Scheduler()
    scheduler.handle(GraphSubmitted(first))
    with pytest.raises(ValueError, match="other groups"):
        scheduler.handle(GraphSubmitted(second))


def test_an_empty_graph_is_finished_at_once():
    scheduler = Scheduler()
    assert scheduler.handle(GraphSubmitted(Graph(0, (), ()))) == [FinishIteration(0)]


def test_a_graph_that_can_never_end_is_said_to_be_one():
    task = Task("train", 0, "train", "forward_backward", "main", "actor", weight_version=3)
    graph = Graph(0, (DeviceGroup("main", (0,), ("actor",)),), (task,))
    with pytest.raises(RuntimeError, match=r"Nothing runs.*ready: \['train'\]"):
        Scheduler().handle(GraphSubmitted(graph))


def test_finished_iterations_come_before_what_they_let_start(two_pools):
    first, second = graphs_of(two_pools, IterationShape(4), 2)
    scheduler = Scheduler()
    actions = scheduler.handle(GraphSubmitted(first)) + scheduler.handle(GraphSubmitted(second))
    run_until(scheduler, actions, "install/generate")
    after = scheduler.handle(TaskFinished("install/generate", 0))
    assert after[0] == FinishIteration(0)
    assert started(after) == ["generate/0"]
    assert not [action for action in after if isinstance(action, StartTransfer)]
