"""Pipeline stages run where workers can hold them; what they cannot is said in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from flexrlhf.core.errors import PlanError
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.placement.runnable import obstacle, require_runnable

FOUR = (0, 1, 2, 3)


def staged(**keys: Any) -> RolePlacement:
    return RolePlacement(FOUR, pipeline_parallel=2, **keys)


@pytest.mark.parametrize(
    "placement",
    [
        staged(data_parallel=2),
        staged(data_parallel=2, zero_stage=1, offload=True),
        staged(tensor_parallel=2, generation="tensor_parallel", generation_tensor_parallel=1),
        RolePlacement(FOUR, data_parallel=4, zero_stage=3, generation="per_token"),
    ],
)
def test_workers_run_stages_with_replicas_and_tensors(placement: RolePlacement):
    assert obstacle(placement) is None
    require_runnable(Plan(1, "colocated", feasible=True, why="", placement={"actor": placement}), 4)


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (staged(data_parallel=2, zero_stage=2), "ZeRO stage 2 would take them apart"),
        (staged(data_parallel=2, zero_stage=3), "ZeRO stage 3 would take them apart"),
        (staged(data_parallel=2, generation="gathered"), "not generation = gathered"),
    ],
)
def test_what_stages_do_not_go_with_is_refused(placement: RolePlacement, why: str):
    assert why in (obstacle(placement) or "")
    plan = Plan(1, "colocated", feasible=True, why="", placement={"actor": placement})
    with pytest.raises(PlanError, match=why) as caught:
        require_runnable(plan, 4)
    assert caught.value.wrong.startswith("The plan 'colocated' cuts actor into 2 pipeline stages")
