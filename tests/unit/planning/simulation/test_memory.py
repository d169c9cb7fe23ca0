from __future__ import annotations

import pytest

from flexrlhf.planning.simulation.memory import RoleMemory
from flexrlhf.planning.workflow.binding import TaskTime

TIMES = {
    "generate": TaskTime(6.0, peak_bytes=60),
    "logprobs": TaskTime(1.0, peak_bytes=40),
    "values": TaskTime(1.0, peak_bytes=42),
    "rewards": TaskTime(3.0, peak_bytes=44),
    "advantage": TaskTime(0.5, peak_bytes=30),
    "forward_backward": TaskTime(3.0, 1.0, peak_bytes=75),
    "optimizer_step": TaskTime(1.0, peak_bytes=75),
    "install": TaskTime(0.25, peak_bytes=50),
    "experience": 0.5,
    ("logprobs/reference/0", 0): TaskTime(2.0, peak_bytes=41),
}


def test_peaks_by_device_and_stage(simulated, interleaved):
    """The timeline is that of `test_simulator`: reference on device 0, reward on device 1."""
    both = {"generate": 60, "advantage": 30, "train": 75, "sync": 50}
    assert simulated(interleaved, TIMES).peak_bytes() == {
        0: both | {"score": 42},
        1: both | {"score": 44},
    }


def test_memory_over_time(simulated, interleaved):
    steps = simulated(interleaved, TIMES).memory_over_time({0: 25, 1: 26})
    assert steps == {
        0: (
            (0.0, 60), (6.0, 40), (7.0, 42), (8.0, 41), (10.0, 25), (11.5, 30), (12.0, 75),
            (22.0, 50), (22.25, 25),
        ),
        1: (
            (0.0, 60), (6.0, 40), (7.0, 42), (8.0, 44), (11.0, 26), (11.5, 30), (12.0, 75),
            (22.0, 50), (22.25, 26),
        ),
    }  # fmt: skip


def test_memory_between_tasks_is_zero_where_it_is_not_known(simulated, interleaved):
    steps = simulated(interleaved, TIMES).memory_over_time()
    assert (10.0, 0) in steps[0]
    assert (11.0, 0) in steps[1]


def test_a_device_that_starts_idle_holds_what_rests_there(simulated, two_pools):
    times = TIMES | {"publish": TaskTime(0.25, peak_bytes=20), "weights": 1.0}
    steps = simulated(two_pools, times).memory_over_time({0: 17})
    assert steps[0][:2] == ((0.0, 17), (13.5, 30))  # 13 s generating and scoring, 0.5 s under way.
    assert steps[1][0] == (0.0, 0)


def test_memory_use_of_the_interleaved_example(simulated, interleaved):
    roles = {
        "actor": RoleMemory(10, 40),
        "critic": RoleMemory(10, 40),
        "reference": RoleMemory(8, 8),
        "reward": RoleMemory(6, 6),
    }
    use = simulated(interleaved, TIMES).memory_use(roles)
    held = 2 * 40 + 2 * 40 + 8 + 6
    # Actor: 6 s generating and 1 s scoring with its weights, 5 s training with everything, on two
    # devices; critic likewise without generation; reference 2 s and reward 3 s on one each.
    useful = 2 * (10 * 7 + 40 * 5) + 2 * (10 * 1 + 40 * 5) + 8 * 2 + 6 * 3
    assert use.efficiency == pytest.approx(useful / (held * 22.25))
    assert use.idle_bytes == pytest.approx(held - useful / 22.25)


def test_memory_use_counts_only_the_window(simulated, two_pools):
    times = TIMES | {"publish": 0.25, "weights": 1.0}
    roles = {"shadow_actor": RoleMemory(10, 10)}
    run = simulated(two_pools, times, max_staleness=1)
    window_s = run.window.end_s - run.window.start_s
    busy_s = (6.0 + 1.0) * run.window.num_iterations
    assert run.memory_use(roles).efficiency == pytest.approx(busy_s / window_s)


def test_nothing_held_has_no_efficiency(simulated, interleaved):
    with pytest.raises(ValueError, match="0 bytes held"):
        simulated(interleaved, TIMES).memory_use({})
