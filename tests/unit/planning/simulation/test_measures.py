from __future__ import annotations

import pytest

from flexrlhf.planning.simulation.device_time import devices_by_groups
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.groups import DeviceGroup

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


def test_shares_of_the_interleaved_example(simulated, interleaved):
    """Hand-worked timeline: see `test_simulator`; 22.25 s on two devices.

    Device 0 waits from 10 to 11.5 for the reward, and gets samples in 1 s of it; device 1 waits
    from 11 to 11.5 for what the reward sends.
    """
    run = simulated(interleaved, TIMES)
    assert run.shares() == pytest.approx(
        {
            "generate": 12 / 44.5,
            "score": (4.5 + 5.5) / 44.5,
            "train": 20 / 44.5,
            "communication": 1.5 / 44.5,
            "sync": 0.5 / 44.5,
            "bubble": 0.5 / 44.5,
        }
    )
    assert run.utilization() == pytest.approx({0: 20.5 / 22.25, 1: 21.5 / 22.25})
    assert run.stage_s() == {"generate": 6.0, "score": 6.0, "train": 10.0, "sync": 0.25}


def test_devices_give_the_same_shares_as_their_groups(simulated, interleaved):
    run = simulated(interleaved, TIMES | {"forward_backward": TaskTime(4.0, 0.75)})
    devices = run.device_timeline()
    assert devices.iterations == (1,)
    assert devices.shares(1) == pytest.approx(run.shares())
    assert list(devices.utilization(1).values()) == pytest.approx(list(run.utilization().values()))
    assert devices.stage_seconds(1) == pytest.approx(run.stage_s())


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_shares_add_up_to_one(simulated, three_pools, max_staleness):
    times = TIMES | {"weights": TransferTime(10.0, ("net",)), "generate": TaskTime(5.0, 0.7)}
    run = simulated(
        three_pools,
        times,
        links={"net": 3.0},
        rollout_micro_batches=3,
        max_staleness=max_staleness,
    )
    assert sum(run.shares().values()) == pytest.approx(1.0, abs=1e-9)
    assert min(run.shares().values()) >= 0


def test_pools_count_by_their_devices(simulated, place):
    """Generation on 1 of 4 devices for 6 s, rest of 11.5 s idle there, and so on."""
    plan = place(actor=[0, 1, 2], critic=[0, 1, 2], shadow_actor=[3], reference=[3], reward=[3])
    times = dict.fromkeys(TIMES, 0.0) | {"generate": 6.0, "forward_backward": 2.0}
    run = simulated(plan, times)
    assert run.iteration_s == 10.0
    assert run.shares()["generate"] == pytest.approx(6 / 40)
    assert run.shares()["train"] == pytest.approx(3 * 4 / 40)
    assert run.shares()["bubble"] == pytest.approx(1 - 18 / 40)


def test_work_of_other_iterations_counts_in_a_pipelined_window(simulated, two_pools):
    run = simulated(two_pools, TIMES, max_staleness=1)
    window_s = run.window.end_s - run.window.start_s
    cycle = run.window.num_iterations
    per_iteration = {"generate": 6.0 * 2, "train": 10.0 * 2}
    for share, device_s in per_iteration.items():
        assert run.shares()[share] == pytest.approx(device_s * cycle / (4 * window_s))


def test_links_are_used_in_part(simulated, interleaved):
    times = TIMES | {"experience": TransferTime(100.0, ("net", "other"))}
    run = simulated(interleaved, times, links={"net": 100.0, "other": 400.0, "idle": 5.0})
    num_bytes = 4 * 100.0
    assert run.link_utilization() == pytest.approx(
        {
            "net": num_bytes / 100 / run.iteration_s,
            "other": num_bytes / 400 / run.iteration_s,
            "idle": 0.0,
        }
    )


def test_spans_say_what_moves_and_to_which_stage_it_belongs(simulated, place):
    plan = place(actor=[0], critic=[1], shadow_actor=[2], reference=[2], reward=[3])
    times = TIMES | {"experience": TransferTime(36.0, ("a", "b"), 0.5)}
    run = simulated(plan, times, links={"a": 36.0, "b": 72.0})
    moved = {span.name: span for span in run.timeline.spans if span.transfer is not None}
    seen = {
        (name.split("/")[0], span.track, span.stage, span.transfer) for name, span in moved.items()
    }
    assert seen == {
        ("samples", "critic", "score", "experience"),
        ("samples", "score", "score", "experience"),
        ("scores", "actor", "advantage", "experience"),
        ("batch", "critic", "train", "experience"),
        ("weights", "generate", "sync", "weights"),
    }
    one = next(span for name, span in moved.items() if name.startswith("scores/"))
    assert one.attributes == {"bytes": 36.0, "links": "a, b"}


def test_a_task_is_a_span_of_compute_and_one_of_collectives(simulated, two_pools):
    times = TIMES | {
        "generate": TaskTime(4.0, 0.5, attributes={"tokens": 100}),
        "install": TaskTime(0.0, 1.0),
    }
    run = simulated(two_pools, times)
    spans = [(s.name, s.start_s, s.end_s, s.transfer) for s in run.timeline.spans]
    assert ("generate/0", 0.0, 4.0, None) in spans
    assert ("generate/0", 4.0, 4.5, "collective") in spans
    installs = [span for span in run.timeline.spans if span.name == "install/generate"]
    assert [span.transfer for span in installs] == ["collective"]
    generated = next(span for span in run.timeline.spans if span.name == "generate/0")
    assert (generated.iteration, generated.role) == (1, "shadow_actor")
    assert generated.attributes == {"tokens": 100}


def test_a_span_that_is_cut_off_ends_with_the_run(simulated, two_pools):
    times = TIMES | {"generate": TaskTime(4.0, 20.0)}
    run = simulated(two_pools, times, max_staleness=2)
    assert max(span.end_s for span in run.timeline.spans) == run.window.end_s


def test_devices_that_hold_the_same_groups_are_looked_at_once():
    groups = (
        DeviceGroup("all", tuple(range(8)), ()),
        DeviceGroup("reference", (0, 1, 2, 3), ()),
        DeviceGroup("reward", (4, 5, 6, 7), ()),
        DeviceGroup("spare", (9,), ()),
    )
    assert devices_by_groups(groups) == {
        ("all", "reference"): (0, 1, 2, 3),
        ("all", "reward"): (4, 5, 6, 7),
        ("spare",): (9,),
    }
