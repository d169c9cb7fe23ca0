from __future__ import annotations

import json

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import PlanError
from flexrlhf.planning.placement.one_device import one_device_plan


@pytest.mark.parametrize(
    ("spec", "roles"),
    [
        (algorithm_spec("ppo"), {"actor", "critic", "reference", "reward"}),
        (algorithm_spec("ppo", share_actor_critic=True), {"actor", "reference", "reward"}),
        (algorithm_spec("grpo", uses_reference=False), {"actor", "reward"}),
        (algorithm_spec("sft"), {"actor"}),
        (algorithm_spec("reward_model"), {"reward"}),
    ],
)
def test_every_role_of_the_algorithm_sits_on_the_device(spec, roles):
    plan = one_device_plan(spec)
    assert set(plan.placement) == roles
    assert plan.devices == (0,)
    assert (plan.rank, plan.strategy, plan.chosen_by) == (1, "colocated", "auto")


def test_nothing_is_predicted_yet():
    document = one_device_plan(algorithm_spec("ppo")).to_json()
    assert "predicted" not in document
    assert "bound_by" not in document
    assert json.loads(json.dumps(document)) == document


def test_the_user_may_name_the_only_strategy():
    assert one_device_plan(algorithm_spec("sft"), strategy="colocated").chosen_by == "user"


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("disaggregated", "needs at least two devices"),
        ("tp_generation", "needs at least two devices"),
        ("guideline", "not built yet"),
        ("custom", "not built yet"),
        ("colocate", "Did you mean 'colocated'"),
    ],
)
def test_other_strategies_are_refused_with_the_reason(strategy, message):
    with pytest.raises(PlanError, match=message):
        one_device_plan(algorithm_spec("ppo"), strategy=strategy)
