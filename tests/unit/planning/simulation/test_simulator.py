"""Timelines that were worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.timeline import read_trace, write_trace
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.scheduler import Scheduler
from flexrlhf.planning.workflow.shape import IterationShape

TIMES = {
    "generate": 6.0,
    "logprobs": 1.0,
    "values": 1.0,
    "rewards": 3.0,
    "advantage": 0.5,
    "forward_backward": 4.0,
    "optimizer_step": 1.0,
    "publish": 0.25,
    "install": 0.25,
    "experience": 0.5,
    "weights": 2.0,
}


def test_colocated(simulated, when):
    """One after the other, collectives behind their compute."""
    times = TIMES | {"generate": TaskTime(6.0, 0.5)}
    run = simulated(one_device_plan(algorithm_spec("ppo")), times)
    assert when(run) == {
        "generate/0": (0.0, 6.5),
        "logprobs/actor/0": (6.5, 7.5),
        "values/critic/0": (7.5, 8.5),
        "logprobs/reference/0": (8.5, 9.5),
        "rewards/reward/0": (9.5, 12.5),
        "advantage": (12.5, 13.0),
        "forward_backward/actor/epoch0/mini0/micro0": (13.0, 17.0),
        "optimizer_step/actor/epoch0/mini0": (17.0, 18.0),
        "forward_backward/critic/epoch0/mini0/micro0": (18.0, 22.0),
        "optimizer_step/critic/epoch0/mini0": (22.0, 23.0),
        "install/main": (23.0, 23.25),
    }
    assert run.iteration_s == 23.25


def test_interleaved_reference_and_reward_score_at_the_same_time(simulated, when, interleaved):
    """Figure 3b: the critic's values come first, since they stand first in the graph."""
    times = TIMES | {("logprobs/reference/0", 0): 2.0}
    run = simulated(interleaved, times)
    assert when(run) == {
        "generate/0": (0.0, 6.0),
        "samples/0/actor+critic->reference": (6.0, 6.5),
        "samples/0/actor+critic->reward": (6.0, 6.5),
        "logprobs/actor/0": (6.0, 7.0),
        "values/critic/0": (7.0, 8.0),
        "logprobs/reference/0": (8.0, 10.0),
        "rewards/reward/0": (8.0, 11.0),
        "scores/0/reference->actor+critic": (10.0, 10.5),
        "scores/0/reward->actor+critic": (11.0, 11.5),
        "advantage": (11.5, 12.0),
        "forward_backward/actor/epoch0/mini0/micro0": (12.0, 16.0),
        "optimizer_step/actor/epoch0/mini0": (16.0, 17.0),
        "forward_backward/critic/epoch0/mini0/micro0": (17.0, 21.0),
        "optimizer_step/critic/epoch0/mini0": (21.0, 22.0),
        "install/actor+critic": (22.0, 22.25),
    }


def test_two_pools_score_a_micro_batch_while_later_ones_are_still_to_generate(
    simulated, when, two_pools
):
    """Figure 4a: generation and scoring alternate in one pool, training waits for all of it."""
    times = TIMES | {
        "generate": 3.0,
        "logprobs": 0.25,
        "values": 0.25,
        "rewards": 0.25,
        "weights": TransferTime(100.0, ("net",), latency_s=0.25),
    }
    run = simulated(two_pools, times, links={"net": 50.0}, rollout_micro_batches=4)
    table = when(run)
    for i in range(4):
        assert table[f"generate/{i}"] == (4 * i, 4 * i + 3)
        assert table[f"logprobs/shadow_actor/{i}"] == (4 * i + 3, 4 * i + 3.25)
        assert table[f"rewards/reward/{i}"] == (4 * i + 3.75, 4 * i + 4)
        assert table[f"scores/{i}/generate->train"] == (4 * i + 4, 4 * i + 4.5)
    assert table["advantage"] == (16.5, 17.0)
    assert table["optimizer_step/critic/epoch0/mini0"] == (26.0, 27.0)
    assert table["publish/train"] == (27.0, 27.25)
    assert table["weights/train->generate"] == (27.25, 29.5)  # 100 bytes at 50 bytes/s, 0.25 s.
    assert table["install/generate"] == (29.5, 29.75)
    assert run.iteration_s == 29.75
    syncs = [s for s in run.timeline.spans if s.transfer == "weights"]
    assert len(syncs) == 1


def test_three_pools_score_beside_generation(simulated, when, three_pools):
    """Figure 4b: seven workers, twelve micro-batches, the shadow actor alone on two of them."""
    times = TIMES | {
        "generate": 1.0,
        "logprobs": 0.25,
        "values": 0.25,
        "rewards": 0.25,
        "experience": 0.25,
    }
    run = simulated(three_pools, times, rollout_micro_batches=12)
    table = when(run)
    for i in range(12):
        start_s = 1.25 * i
        assert table[f"generate/{i}"] == (start_s, start_s + 1)
        assert table[f"logprobs/shadow_actor/{i}"] == (start_s + 1, start_s + 1.25)
        assert table[f"samples/{i}/generate->score"] == (start_s + 1, start_s + 1.25)
        assert table[f"values/shadow_critic/{i}"] == (start_s + 1.25, start_s + 1.5)
        assert table[f"rewards/reward/{i}"] == (start_s + 1.75, start_s + 2)
    # Micro-batch 1 is scored while 3 and 4 are still generated.
    assert table["rewards/reward/0"][1] < table["generate/2"][0] < table["generate/3"][1]
    assert table["advantage"] == (16.0, 16.5)
    assert table["weights/train->generate"] == table["weights/train->score"] == (26.75, 28.75)
    assert run.iteration_s == 29.0


def test_one_step_off_generates_beside_training(simulated, when, two_pools):
    """At staleness 1, generation of iteration k + 2 waits for the weights that k made.

    So two iterations take one round of generation (5), experience (0.25), training (5.75), weights
    (0.5) and installation (0.25).
    """
    times = {
        "generate": 4.0,
        "logprobs": 0.25,
        "values": 0.25,
        "rewards": 0.25,
        "advantage": 0.5,
        "forward_backward": 2.0,
        "optimizer_step": 0.5,
        "publish": 0.25,
        "install": 0.25,
        "experience": 0.25,
        "weights": 0.5,
    }
    run = simulated(two_pools, times, iterations=9, max_staleness=1)
    starts = [when(run, k)["generate/0"][0] for k in range(6)]
    assert starts == [0.0, 5.0, 11.75, 17.5, 23.5, 29.25]
    installs = [when(run, k)["install/generate"] for k in range(5)]
    assert installs == [(11.5, 11.75), (17.25, 17.5), (23.25, 23.5), (29.0, 29.25), (35.0, 35.25)]
    assert when(run, 1)["advantage"] == (11.0, 11.5)
    assert when(run, 2)["advantage"] == (17.0, 17.5)
    steady = simulated(two_pools, times, max_staleness=1)
    assert steady.window.repeats
    assert steady.iteration_s == (5 + 0.25 + 5.75 + 0.5 + 0.25) / 2
    synchronous = simulated(two_pools, times)
    assert synchronous.iteration_s == 11.75


def test_transfers_that_share_a_link_slow_each_other_down(simulated, when, interleaved):
    times = TIMES | {"experience": TransferTime(100.0, ("net",), latency_s=0.25)}
    table = when(simulated(interleaved, times, links={"net": 50.0}))
    # Two times 100 bytes at 50 bytes/s together; what the last bytes still need is not shared.
    assert table["samples/0/actor+critic->reference"] == (6.0, 10.25)
    assert table["samples/0/actor+critic->reward"] == (6.0, 10.25)
    # Reference ends at 11.25, reward at 13.25: alone, each takes 2 s and 0.25 s.
    assert table["scores/0/reference->actor+critic"] == (11.25, 13.5)
    assert table["scores/0/reward->actor+critic"] == (13.25, pytest.approx(15.5))


def test_at_equal_times_what_arrives_is_seen_before_a_group_becomes_free(fixed_durations):
    """The transfer was started after the task, but its target is the earlier one in the graph."""
    groups = (DeviceGroup("a", (0,), ()), DeviceGroup("b", (1,), ()))
    tasks = (
        Task("long", 0, "score", "values", "b"),
        Task("source", 0, "score", "rewards", "a"),
        Task("target", 0, "score", "rewards", "b"),
        Task("other", 0, "score", "logprobs", "b"),
    )
    moves = (Transfer("move", 0, "experience", "a", "b", ("source",), ("target",)),)
    graph = Graph(0, groups, tasks, moves, {"other": ("long",)})
    times = {"values": 2.0, "rewards": 1.0, "logprobs": 1.0, "experience": 1.0}
    run = simulate(lambda _: graph, fixed_durations(times), iterations=1)
    assert [(a.item.name, a.start_s) for a in run.activities] == [
        ("long", 0.0),
        ("source", 0.0),
        ("move", 1.0),
        ("target", 2.0),
        ("other", 3.0),
    ]


def test_an_iteration_begins_when_the_one_before_is_finished(simulated, when, two_pools):
    run = simulated(two_pools, TIMES, iterations=3)
    assert [finish.iteration for finish in run.finishes] == [0, 1, 2]
    for earlier, later in pairwise(run.finishes):
        assert when(run, later.iteration)["generate/0"][0] == earlier.time_s
    assert run.makespan_s == run.finishes[-1].time_s == pytest.approx(3 * run.iteration_s)


def test_the_scheduler_gives_the_same_answers_to_its_log(simulated, three_pools, checked_scheduler):
    scheduler = checked_scheduler()
    simulated(three_pools, TIMES, iterations=4, max_staleness=1, scheduler=scheduler)
    again = Scheduler()
    assert [action for event in scheduler.log for action in again.handle(event)] == (
        scheduler.actions
    )


def test_the_same_inputs_give_the_same_run(simulated, three_pools):
    times = TIMES | {"experience": TransferTime(7.0, ("net",), 0.1)}
    cuts = {"rollout_micro_batches": 5, "max_staleness": 2, "sync_every": 2}
    first, second = (simulated(three_pools, times, links={"net": 3.0}, **cuts) for _ in range(2))
    assert first == second
    assert first.timeline.to_json() == second.timeline.to_json()


def test_a_run_can_begin_later(simulated, when, two_pools, fixed_durations):
    first = simulated(two_pools, TIMES, iterations=1)
    shape = IterationShape(24)
    run = simulate(
        lambda iteration: iteration_graph(algorithm_spec("ppo"), two_pools, shape, iteration),
        fixed_durations(TIMES),
        start_iteration=7,
    )
    assert when(run, 7) == when(first, 0)
    assert (run.window.first, run.window.last) == (7, 7)


def test_a_simulated_run_opens_as_a_trace_and_reads_back(simulated, interleaved, tmp_path):
    run = simulated(
        interleaved, TIMES | {"generate": TaskTime(6.0, 0.5, attributes={"samples": 24})}
    )
    path = tmp_path / "timeline.json"
    write_trace(path, {"predicted": run.device_timeline()})
    timeline = read_trace(path)["predicted"]
    assert timeline.devices == ("device 0", "device 1")
    assert timeline.to_json() == run.device_timeline().to_json()


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"generate": -1.0}, r"'generate/0' takes -1\.0 \+ 0\.0 s"),
        ({"generate": TaskTime(1.0, math.inf)}, r"'generate/0' takes 1\.0 \+ inf s"),
        ({"generate": math.nan}, "'generate/0' takes nan"),
        ({"weights": -0.5}, r"'weights/train->generate' moves 0\.0 bytes after -0\.5 s"),
        ({"weights": TransferTime(-1.0, ("net",))}, r"moves -1\.0 bytes"),
        ({"weights": TransferTime(1.0, ("gone",))}, "no link 'gone', only net"),
    ],
)
def test_impossible_durations_are_refused(simulated, two_pools, times, message):
    with pytest.raises(ValueError, match=message):
        simulated(two_pools, TIMES | times, links={"net": 1.0})


def test_a_run_has_an_iteration(simulated, two_pools, fixed_durations):
    run = simulated(two_pools, TIMES, iterations=2)
    assert repr(run) == "Simulation(2 iterations, 28 activities, 25.5 s per iteration)"
    with pytest.raises(ValueError, match="iterations = 0 "):
        simulated(two_pools, TIMES, iterations=0)
    with pytest.raises(ValueError, match="num_in_flight = 0;"):
        simulate(run.graphs.__getitem__, fixed_durations(TIMES), num_in_flight=0)


def test_graphs_without_tasks_take_no_time(fixed_durations):
    graphs = [Graph(k, (DeviceGroup("a", (0,), ()),), ()) for k in range(3)]
    run = simulate(graphs.__getitem__, fixed_durations({}), iterations=3)
    assert [finish.time_s for finish in run.finishes] == [0.0, 0.0, 0.0]
    assert run.makespan_s == 0.0
    assert run.critical_path() == ()
    assert run.shares()["bubble"] == 1.0
    assert run.utilization() == {0: 0.0}
