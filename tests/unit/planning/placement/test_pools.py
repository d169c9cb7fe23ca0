"""Pools: which roles stand in them, and on which devices."""

from __future__ import annotations

from fractions import Fraction

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import PlanError
from flexrlhf.planning.placement.pools import place_pools, pool_ranges, pool_roles


def shares(**written):
    return {name: Fraction(str(share)) for name, share in written.items()}


def test_roles_of_ppo(ppo):
    assert pool_roles(ppo, has_score=True) == {
        "train": ("actor", "critic"),
        "score": ("shadow_critic", "reference", "reward"),
        "generate": ("shadow_actor",),
    }
    assert pool_roles(ppo, has_score=False) == {
        "train": ("actor", "critic"),
        "generate": ("shadow_actor", "shadow_critic", "reference", "reward"),
    }


@pytest.mark.parametrize(
    ("spec", "score"),
    [
        (algorithm_spec("ppo", share_actor_critic=True), ("reference", "reward")),
        (algorithm_spec("grpo", uses_reference=False), ("reward",)),
        (algorithm_spec("grpo", has_reward_model=False), ("reference",)),
        (algorithm_spec("grpo", uses_reference=False, has_reward_model=False), ()),
    ],
)
def test_only_models_that_score_stand_in_the_scoring_pool(spec, score):
    assert pool_roles(spec, has_score=True)["score"] == score


def test_figure_4b():
    """Seven workers; the shadow actor alone on the last two."""
    ranges = pool_ranges(shares(train="3/7", generate="2/7", score="2/7"), range(7))
    assert ranges == {"train": (0, 1, 2), "score": (3, 4), "generate": (5, 6)}


def test_figure_4a(ppo):
    """Two workers train; two generate and score."""
    ranges = pool_ranges(shares(train=0.5, generate=0.5), range(4))
    assert place_pools(ppo, ranges, {}) == {
        "actor": (0, 1),
        "critic": (0, 1),
        "reference": (2, 3),
        "reward": (2, 3),
        "shadow_actor": (2, 3),
        "shadow_critic": (2, 3),
    }


def test_shares_go_by_largest_remainder():
    ranges = pool_ranges(shares(train=0.5, generate=0.3, score=0.2), range(8))  # 4, 2.4, 1.6
    assert {name: len(devices) for name, devices in ranges.items()} == {
        "train": 4,
        "score": 2,
        "generate": 2,
    }


def test_a_ratio_inside_a_pool(ppo):
    ranges = pool_ranges(shares(train=0.5, generate=0.25, score=0.25), range(16))
    ratios = {"score": (Fraction(1), Fraction(1, 2), Fraction(1, 2))}
    placed = place_pools(ppo, ranges, ratios)
    assert placed["shadow_critic"] == (8, 9, 10, 11)
    assert (placed["reference"], placed["reward"]) == ((8, 9), (10, 11))


def test_functions_stand_where_scoring_is():
    spec = algorithm_spec("grpo", has_reward_model=False)
    ranges = pool_ranges(shares(train=0.5, generate=0.5), range(4))
    assert place_pools(spec, ranges, {})["reward"] == (2, 3)


@pytest.mark.parametrize(
    ("written", "devices", "said"),
    [
        ({"train": 0.5, "generate": 0.4}, 8, "{train: 0.5, generate: 0.4} sums to 0.9."),
        ({"train": 0.9, "generate": 0.1}, 2, "generate's 0.1 of 2 devices is none."),
    ],
)
def test_what_is_no_division(written, devices, said):
    with pytest.raises(PlanError) as caught:
        pool_ranges(shares(**written), range(devices))
    assert said in str(caught.value)


def test_a_pool_without_a_model_is_refused():
    spec = algorithm_spec("grpo", uses_reference=False, has_reward_model=False)
    ranges = pool_ranges(shares(train=0.5, generate=0.25, score=0.25), range(4))
    with pytest.raises(PlanError, match=r"pools\.score has devices, but grpo has no model"):
        place_pools(spec, ranges, {})


def test_a_ratio_inside_a_pool_names_its_key(ppo):
    ranges = pool_ranges(shares(train=0.5, generate=0.5), range(4))
    with pytest.raises(PlanError, match=r"placement.pools.train.ratio = \[1, 0.5\]"):
        place_pools(ppo, ranges, {"train": (Fraction(1), Fraction(1, 2))})
    with pytest.raises(PlanError, match="The roles of this pool are actor, critic: 2 shares"):
        place_pools(ppo, ranges, {"train": (Fraction(1),)})
