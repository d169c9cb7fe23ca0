from __future__ import annotations

from itertools import pairwise

import pytest

from flexrlhf.planning.workflow.binding import TransferTime

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
    ("logprobs/reference/0", 0): 2.0,
}


def told(path):
    return [(step.name, step.iteration, step.waited_for) for step in path]


def test_the_path_of_the_interleaved_example(simulated, interleaved):
    path = simulated(interleaved, TIMES).critical_path()
    assert told(path) == [
        ("generate/0", 0, "start"),
        ("logprobs/actor/0", 0, "data"),
        ("values/critic/0", 0, "devices"),  # Its samples were there when generation ended.
        ("rewards/reward/0", 0, "devices"),  # Its samples came at 6.5 s, the critic held device 1.
        ("scores/0/reward->actor+critic", 0, "data"),
        ("advantage", 0, "data"),
        ("forward_backward/actor/epoch0/mini0/micro0", 0, "data"),
        ("optimizer_step/actor/epoch0/mini0", 0, "data"),
        ("forward_backward/critic/epoch0/mini0/micro0", 0, "devices"),
        ("optimizer_step/critic/epoch0/mini0", 0, "data"),
        ("install/actor+critic", 0, "data"),
    ]
    assert [step.start_s for step in path] == [
        0.0, 6.0, 7.0, 8.0, 11.0, 11.5, 12.0, 16.0, 17.0, 21.0, 22.0
    ]  # fmt: skip
    assert {step.link_s for step in path} == {0.0}


def test_a_shared_link_makes_a_step_longer(simulated, interleaved):
    times = TIMES | {"experience": TransferTime(100.0, ("net",), latency_s=0.25)}
    path = simulated(interleaved, times, links={"net": 50.0}).critical_path()
    steps = {step.name: step for step in path}
    # Together 4.25 s, alone 2.25 s.
    samples = steps["samples/0/actor+critic->reward"]
    assert (samples.waited_for, samples.link_s) == ("data", pytest.approx(2.0))
    assert steps["rewards/reward/0"].waited_for == "data"
    # From 13.25 s to 15.25 s beside those of the reference, which began at 12.25 s; then alone.
    scores = steps["scores/0/reward->actor+critic"]
    assert scores.end_s - scores.start_s == pytest.approx(3.25)
    assert scores.link_s == pytest.approx(1.0)


def test_the_next_iteration_of_a_synchronous_run_waits_to_be_submitted(simulated, two_pools):
    path = simulated(two_pools, TIMES, iterations=2).critical_path(1)
    first = next(step for step in path if step.iteration == 1)
    assert (first.name, first.waited_for) == ("generate/0", "iteration")
    assert path[-1].name == "install/generate"


def test_generation_of_a_pipelined_run_waits_for_weights(simulated, two_pools):
    times = TIMES | {"generate": 4.0}
    run = simulated(two_pools, times, iterations=6, max_staleness=1)
    path = run.critical_path(4)
    reasons = {(step.name, step.iteration): step.waited_for for step in path}
    assert reasons["generate/0", 2] == "weights"
    assert reasons["generate/0", 4] == "weights"
    assert reasons["weights/train->generate", 2] == "data"
    assert ("generate/0", 3) not in reasons


def test_training_of_a_pipelined_run_waits_for_its_own_devices(simulated, two_pools):
    times = TIMES | {"generate": 1.0, "forward_backward": 9.0}
    run = simulated(two_pools, times, iterations=6, max_staleness=3)
    path = run.critical_path(3)
    reasons = [(step.name, step.iteration, step.waited_for) for step in path]
    assert ("advantage", 3, "devices") in reasons
    assert ("generate/0", 0, "start") in reasons


def test_a_critic_waits_for_the_weights_it_trains(simulated, place):
    plan = place(actor=[0], critic=[1], shadow_actor=[2], reference=[2], reward=[2])
    times = TIMES | {("batch/mini0/0/actor->critic", 0): 50.0}
    run = simulated(plan, times, iterations=2, max_staleness=1)
    reasons = {(s.name, s.iteration): s.waited_for for s in run.critical_path(1)}
    assert reasons["values/critic/0", 1] == "weights"


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_steps_follow_each_other_without_a_gap(simulated, three_pools, max_staleness):
    run = simulated(
        three_pools,
        TIMES,
        iterations=5,
        rollout_micro_batches=3,
        max_staleness=max_staleness,
    )
    for finish in run.finishes:
        path = run.critical_path(finish.iteration)
        assert path[0].start_s == 0.0
        assert path[-1].end_s == finish.time_s
        for step, following in pairwise(path):
            assert step.end_s == following.start_s


def test_an_iteration_that_was_not_finished_has_no_path(simulated, two_pools):
    with pytest.raises(ValueError, match="Iteration 3 was not finished"):
        simulated(two_pools, TIMES, iterations=2).critical_path(3)
