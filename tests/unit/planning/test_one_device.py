from __future__ import annotations

import json
from fractions import Fraction

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import PUBLISHED_SYSTEMS
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.placement.one_device import one_device_plan, require_one_device
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.placement.pools import PoolShare


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


@pytest.mark.parametrize(
    ("choices", "chosen_by"),
    [
        (Choices(), "auto"),
        (Choices(strategy="colocated"), "user"),
        (Choices(strategy="guideline"), "guideline"),
        (Choices(ratio=(Fraction(1),) * 4), "user"),
        (Choices(strategy="custom", devices={"actor": (0,)}), "user"),
        (Choices(degrees={"actor": {"tensor_parallel": 1, "shard_devices": 1}}), "auto"),
    ],
)
def test_what_one_device_can_do(choices, chosen_by):
    plan = one_device_plan(algorithm_spec("ppo"), choices)
    assert (plan.strategy, plan.chosen_by, plan.devices) == ("colocated", chosen_by, (0,))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (Choices("disaggregated"), "needs at least two devices"),
        (Choices("tp_generation"), "needs at least two devices"),
        (Choices("all"), "a run does one thing"),
        (Choices("colocate"), "Did you mean 'colocated'"),
        (Choices(ratio=(Fraction(1), Fraction(1, 2))), "placement.ratio divides several devices"),
        (Choices(pools={"train": PoolShare(Fraction(1))}), "placement.pools divides several"),
        (Choices(devices={"actor": (0, 1)}), "placement.devices divides several devices"),
        (Choices(degrees={"actor": {"tensor_parallel": 2}}), "actor.tensor_parallel = 2"),
        (Choices(degrees={"actor": {"zero_stage": 3}}), "On one device it is 0"),
        (
            Choices(degrees={"actor": {"micro_batch_samples": 4}}),
            "micro_batch_samples fixes it",
        ),
        (Choices(degrees={"actor": {"offload": True}}), "offload a role"),
    ],
)
def test_what_one_device_cannot_do_is_refused_with_the_reason(choices, message):
    with pytest.raises(PlanError, match=message):
        one_device_plan(algorithm_spec("ppo"), choices)


@pytest.mark.parametrize("system", PUBLISHED_SYSTEMS)
def test_published_systems_are_for_planning_alone(system):
    with pytest.raises(PlanError, match="it can be planned, not run"):
        one_device_plan(algorithm_spec("ppo"), Choices(system))


def plan_with(placement, **changes):
    fields = {"rank": 1, "strategy": "colocated", "feasible": True, "why": "asked", **changes}
    return Plan(placement={"actor": placement}, **fields)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_with(RolePlacement((0, 1), data_parallel=2)), "has 2 devices"),
        (plan_with(RolePlacement((0,)), strategy="verl", export_only=True), "export only"),
        (plan_with(RolePlacement((0,)), rank=None, feasible=False), "is not feasible: asked"),
        (plan_with(RolePlacement((0,), zero_stage=2)), "zero_stage of the actor = 2"),
    ],
)
def test_a_plan_for_more_than_one_device_is_not_run(plan, message):
    with pytest.raises(PlanError, match=message):
        require_one_device(plan)


def test_a_plan_for_one_device_is_run():
    require_one_device(one_device_plan(algorithm_spec("ppo")))
    require_one_device(plan_with(RolePlacement((3,), generation="gathered", shard_devices=1)))
    require_one_device(plan_with(RolePlacement((0,), micro_batch_samples=8)))
