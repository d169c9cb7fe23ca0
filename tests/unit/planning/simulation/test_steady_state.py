from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.simulation.simulator import MOST_ITERATIONS, simulate
from flexrlhf.planning.simulation.steady_state import Running, StateHistory, mean_window
from flexrlhf.planning.workflow.binding import TransferTime
from flexrlhf.planning.workflow.iteration import iteration_graph
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


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_a_synchronous_run_is_known_after_one_iteration(simulated, two_pools, num_micro_batches):
    run = simulated(two_pools, TIMES, rollout_micro_batches=num_micro_batches)
    assert [finish.iteration for finish in run.finishes] == [0]
    assert run.window.repeats
    assert run.intervals_s == (run.iteration_s,)
    longer = simulated(two_pools, TIMES, rollout_micro_batches=num_micro_batches, iterations=3)
    assert longer.intervals_s == pytest.approx([run.iteration_s] * 3)


@pytest.mark.parametrize("train_s", [0.5, 4.0, 9.0])
@pytest.mark.parametrize("generate_s", [0.5, 6.0, 20.0])
@pytest.mark.parametrize(("sync_every", "max_staleness"), [(1, 1), (1, 3), (2, 1), (3, 4)])
def test_a_pipelined_run_goes_on_as_its_window_says(
    simulated, three_pools, generate_s, train_s, sync_every, max_staleness
):
    times = TIMES | {
        "generate": generate_s,
        "forward_backward": train_s,
        "weights": TransferTime(30.0, ("net",), 0.25),
        "experience": TransferTime(3.0, ("net",)),
    }
    cuts = {
        "rollout_micro_batches": 2,
        "sync_every": sync_every,
        "max_staleness": max_staleness,
        "links": {"net": 20.0},
    }
    short = simulated(three_pools, times, **cuts)
    assert short.window.repeats
    assert short.window.num_iterations % sync_every == 0
    cycle, first = short.window.num_iterations, short.window.first
    long = simulated(three_pools, times, iterations=first + 6 * cycle + max_staleness + 2, **cuts)
    finishes_s = [finish.time_s for finish in long.finishes]
    before_s = finishes_s[first - 1] if first else 0.0
    for k in range(1, 6):
        expected_s = before_s + k * cycle * short.iteration_s
        assert finishes_s[first - 1 + k * cycle] == pytest.approx(expected_s)


def test_what_goes_on_when_the_run_repeats_is_cut_off(simulated, two_pools):
    run = simulated(two_pools, TIMES, max_staleness=1)
    end_s = run.finishes[-1].time_s
    assert run.makespan_s == end_s == run.window.end_s
    assert max(activity.item.iteration for activity in run.activities) > run.window.last
    assert all(activity.end_s <= end_s for activity in run.activities)


def test_a_run_of_given_length_is_averaged_without_its_ends(simulated, two_pools):
    run = simulated(two_pools, TIMES, max_staleness=1, iterations=12)
    # Three in flight: four to warm up, and the last two have none behind them.
    assert (run.window.first, run.window.last, run.window.repeats) == (4, 9, False)
    assert len(run.intervals_s) == 6
    assert run.iteration_s == pytest.approx(sum(run.intervals_s) / 6)
    assert {activity.item.iteration for activity in run.activities} == set(range(12))


def test_durations_may_depend_on_the_iteration(simulated, two_pools):
    times = TIMES | {("generate/0", k): 6.0 + k for k in range(5)}
    run = simulated(two_pools, times, iterations=5)
    assert run.intervals_s == pytest.approx([run.intervals_s[0] + k for k in range(5)])
    assert run.percentile_s(50) == pytest.approx(run.intervals_s[2])
    assert run.percentile_s(99) == pytest.approx(run.intervals_s[4])
    assert run.task_percentiles_s(50)["generate/shadow_actor"] == pytest.approx(8.0)
    assert run.task_percentiles_s(100)["generate/shadow_actor"] == pytest.approx(10.0)
    assert run.task_percentiles_s(50)["weights"] == 2.0
    with pytest.raises(ValueError, match="percentile 0 is not in"):
        run.percentile_s(0)


def test_a_long_transient_is_not_taken_for_the_steady_state(simulated, three_pools):
    """Two bottlenecks are so alike that the first 25 iterations look steady at 10.25 s."""
    times = TIMES | {
        "generate": 0.5,
        "weights": TransferTime(30.0, ("net",), 0.25),
        "experience": TransferTime(3.0, ("net",)),
    }
    cuts = {"links": {"net": 20.0}, "rollout_micro_batches": 2, "max_staleness": 3}
    run = simulated(three_pools, times, **cuts)
    assert [finish.time_s for finish in run.finishes][9:12] == pytest.approx(
        [129.15, 139.4, 149.65]
    )
    assert run.iteration_s == pytest.approx(10.75)
    long = simulated(three_pools, times, iterations=80, **cuts).finishes
    assert long[70].time_s - long[60].time_s == pytest.approx(107.5)


def test_a_run_that_never_repeats_is_watched_no_longer_than_so_long(fixed_durations, two_pools):
    shape = IterationShape(8, max_staleness=1)
    slower = {("forward_backward/actor/epoch0/mini0/micro0", k): 4.0 + k for k in range(99)}
    times = TIMES | {"generate": 1.0} | slower
    run = simulate(
        lambda iteration: iteration_graph(algorithm_spec("ppo"), two_pools, shape, iteration),
        fixed_durations(times),
        num_in_flight=shape.num_in_flight,
    )
    assert len(run.finishes) == MOST_ITERATIONS
    assert not run.window.repeats
    assert (run.window.first, run.window.last) == (MOST_ITERATIONS // 2, MOST_ITERATIONS - 1)


def test_supervised_training_has_a_steady_state_too(simulated):
    spec = algorithm_spec("sft")
    run = simulated(one_device_plan(spec), TIMES | {"prepare": 0.5}, spec="sft", mini_batches=2)
    assert run.iteration_s == 0.5 + 2 * (4 + 1)
    assert run.stage_s() == {"train": 10.5}


def test_states_are_compared_from_the_iteration_that_finished_last():
    history = StateHistory(5, 1)
    one = {"started": {6: ["generate/0"]}, "running": [Running(6, "generate/0", False, 2.0)]}
    assert history.find(5, 10.0, **one) is None
    # The names are the same, but 1 s is left.
    other = {"started": {7: ["generate/0"]}, "running": [Running(7, "generate/0", False, 1.0)]}
    assert history.find(6, 20.0, **other) is None
    again = {"started": {8: ["generate/0"]}, "running": [Running(8, "generate/0", False, 2.0)]}
    window = history.find(7, 33.0, **again)
    assert (window.start_s, window.end_s, window.first, window.last) == (10.0, 33.0, 6, 7)
    assert window.num_iterations == 2


def test_iterations_that_differ_are_not_the_same_state():
    history = StateHistory(0, 2)
    nothing = {"started": {}, "running": []}
    assert history.find(0, 3.0, **nothing) is None
    window = history.find(1, 10.0, **nothing)
    assert (window.start_s, window.end_s, window.num_iterations) == (0.0, 10.0, 2)


def test_a_short_run_is_averaged_whole():
    window = mean_window([4.0, 7.0, 9.0], start_iteration=2, num_warm_up=2, num_last=1)
    assert (window.start_s, window.end_s, window.first, window.last) == (0.0, 9.0, 2, 4)
