"""Bounds of an iteration, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.search.bounds import IterationBound, WeightSync

POOLS = IterationBound(
    meetings=[("actor", "critic"), ("shadow_actor", "reward")],
    generating_role="shadow_actor",
    num_parts=4,
    overlaps=False,
    syncs=[WeightSync(("actor",), 7.0)],
)
TIMES = {
    ("shadow_actor", "generate"): 40.0,
    ("reward", "score"): 8.0,
    ("actor", "train"): 10.0,
    ("critic", "train"): 5.0,
}


def test_what_comes_before_the_barrier_and_behind_it_adds_up():
    # Devices that generate also score: 48. Behind the barrier 15 of training, or 10 and the
    # weights' way, 17.
    assert POOLS.seconds(TIMES) == pytest.approx(48.0 + 17.0)


def test_scoring_elsewhere_leaves_only_its_last_part_behind_generation():
    apart = replace(POOLS, meetings=[("actor", "critic"), ("shadow_actor",), ("reward",)])
    assert apart.seconds(TIMES) == pytest.approx(40.0 + 8.0 / 4 + 17.0)
    slow = TIMES | {("reward", "score"): 90.0}
    assert apart.seconds(slow) == pytest.approx(90.0 + 17.0)


def test_where_iterations_overlap_only_the_busiest_device_counts():
    assert replace(POOLS, overlaps=True).seconds(TIMES) == pytest.approx(48.0)


def test_installing_weights_is_left_out():
    assert POOLS.seconds(TIMES | {("shadow_actor", "sync"): 100.0}) == POOLS.seconds(TIMES)


def test_a_pool_counts_only_what_is_its_own():
    train = POOLS.of_pool(("actor", "critic"))
    own = {task: seconds for task, seconds in TIMES.items() if task[0] in ("actor", "critic")}
    assert train.seconds(own) == pytest.approx(17.0)
    assert POOLS.of_pool(("shadow_actor", "reward")).syncs == []


@pytest.mark.parametrize(
    ("pool", "limit"),
    [
        (("actor", "critic"), 100.0 - 48.0),
        (("shadow_actor", "reward"), 100.0 - 17.0),
    ],
)
def test_a_pool_may_be_as_busy_as_the_others_leave_time_for(pool, limit):
    own = {task: seconds for task, seconds in TIMES.items() if task[0] in pool}
    others = {task: seconds for task, seconds in TIMES.items() if task[0] not in pool}
    assert POOLS.limit_of(own, others, 100.0) == pytest.approx(limit)


def test_a_pool_that_only_scores_may_be_busy_while_others_generate():
    apart = replace(POOLS, meetings=[("actor", "critic"), ("shadow_actor",), ("reward",)])
    own = {("reward", "score"): 8.0}
    others = {task: seconds for task, seconds in TIMES.items() if task not in own}
    # 100 less 17 behind the barrier; its last quarter has what 40 of generation leave.
    assert apart.limit_of(own, others, 100.0) == pytest.approx(min(83.0, 4 * (83.0 - 40.0)))
    assert apart.limit_of(own, others, 60.0) == pytest.approx(4 * (43.0 - 40.0))
