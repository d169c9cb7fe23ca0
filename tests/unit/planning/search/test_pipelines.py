"""Where the search offers pipeline stages, and what it takes from them that workers cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.placement.plan import RolePlacement
from flexrlhf.planning.search.field import Cuts, Field, Known
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest

FOUR = (0, 1, 2, 3)


def options_of(
    role: Role,
    *,
    device: str,
    runnable: bool,
    fixed: Mapping[str, Any] | None = None,
    family: str | None = None,
) -> list[RolePlacement]:
    """Every way to split a role of GRPO, colocated on four devices."""
    spec = algorithm_spec("grpo")
    shape = replace(shape_named("llama-7b"), family=family)
    models = {each: HeldModel(shape, is_trained=each in spec.trained) for each in spec.models}
    cluster = Cluster.uniform(device, nodes=1, devices_per_node=4)
    workload = Workload(128, Lengths.fixed(128), Lengths.fixed(128))
    request = PlanRequest(spec, cluster, models, workload, runnable=runnable)
    devices: dict[Role, tuple[int, ...]] = dict.fromkeys(spec.models, FOUR)
    arrangement = Arrangement("colocated", devices, "", fixed={role: fixed or {}})
    field = Field(request, arrangement, Cuts(), known=Known())
    return [option.placement for option in field.options[role]]


def test_an_actor_in_stages_that_is_to_run_generates_with_copies():
    staged = [
        p for p in options_of("actor", device="A100-80G", runnable=True) if p.pipeline_parallel > 1
    ]
    assert {p.pipeline_parallel for p in staged} == {2, 4}
    assert {p.generation for p in staged} == {"tensor_parallel"}
    assert {p.generation_tensor_parallel for p in staged} == {1, 2, 4}
    assert {p.zero_stage for p in staged} == {0, 1}


def test_other_plans_may_generate_through_the_stages():
    placements = options_of("actor", device="A100-80G", runnable=False)
    staged = [p for p in placements if p.pipeline_parallel > 1]
    assert {p.generation for p in staged} == {"gathered", "tensor_parallel"}


@pytest.mark.parametrize(
    ("family", "tensor", "pipeline"),
    [(None, True, True), ("llama", True, True), ("gpt2", False, True), ("opt", False, False)],
)
def test_only_families_that_can_be_loaded_so_are_split(
    family: str | None, tensor: bool, pipeline: bool
):
    placements = options_of("actor", device="A100-80G", runnable=True, family=family)
    assert any(p.tensor_parallel > 1 for p in placements) == tensor
    assert any((p.generation_tensor_parallel or 1) > 1 for p in placements) == tensor
    assert any(p.pipeline_parallel > 1 for p in placements) == pipeline
    assert any(p.zero_stage == 3 for p in placements)
    planned = options_of("actor", device="A100-80G", runnable=False, family=family)
    assert any(p.tensor_parallel > 1 for p in planned)  # other systems can


@pytest.mark.parametrize("role", ["reference", "actor"])
def test_cores_form_pipelines_only_if_they_are_told(role: Role):
    free = options_of(role, device="cpu-core", runnable=True)
    assert {p.pipeline_parallel for p in free} == {1}
    told = options_of(role, device="cpu-core", runnable=True, fixed={"pipeline_parallel": 2})
    assert {p.pipeline_parallel for p in told} == {2}
    assert {p.zero_stage for p in told} <= {0, 1}


def test_more_stages_than_layers_and_shards_in_stages_are_no_way_to_run():
    for fixed in ({"pipeline_parallel": 2, "zero_stage": 3}, {"zero_stage": 2}):
        placements = options_of("actor", device="A100-80G", runnable=True, fixed=fixed)
        assert all(p.pipeline_parallel == 1 for p in placements)


def two_layers(*, runnable: bool, family: str | None = None) -> PlanRequest:
    """Fine-tuning of two layers on four devices."""
    spec = algorithm_spec("sft")
    shape = replace(shape_named("llama-7b"), layers=2, family=family)
    models = {role: HeldModel(shape, is_trained=True) for role in spec.models}
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=4)
    workload = Workload(128, Lengths.fixed(128), Lengths.fixed(128))
    return PlanRequest(spec, cluster, models, workload, runnable=runnable)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"pipeline_parallel": 4}, "pipeline_parallel = 4, but llama-7b has 2 layers"),
        ({"pipeline_parallel": 2, "zero_stage": 3}, "pipeline_parallel = 2 and zero_stage = 3"),
    ],
)
def test_stages_of_the_user_that_nothing_can_run_are_refused(degrees: Any, message: str):
    request = two_layers(runnable=True)
    choices = Choices(strategy="colocated", degrees={"actor": degrees})
    with pytest.raises(PlanError, match=message):
        ranked_plans(request, choices)


@pytest.mark.parametrize("degree", ["tensor_parallel", "pipeline_parallel"])
def test_degrees_that_a_family_cannot_have_are_refused(degree: str):
    request = two_layers(runnable=True, family="opt")
    choices = Choices(strategy="colocated", degrees={"actor": {degree: 2}})
    with pytest.raises(PlanError, match=f"actor.{degree} = 2, but workers cannot split opt"):
        ranked_plans(request, choices)


def test_plans_with_stages_are_for_export_only_where_nothing_can_run_them():
    request = two_layers(runnable=False)
    for zero, expected in ((1, False), (2, True)):
        fixed = {"actor": {"pipeline_parallel": 2, "zero_stage": zero, "offload": False}}
        arrangement = Arrangement("colocated", {"actor": FOUR}, "", fixed=fixed)
        field = Field(request, arrangement, Cuts(), known=Known())
        plans = [field.plan_of([option]) for option in field.options["actor"]]
        assert plans
        assert {plan.export_only for plan in plans} == {expected}
    told = {"actor": {"pipeline_parallel": 4}}
    arrangement = Arrangement("colocated", {"actor": FOUR}, "", fixed=told)
    request = replace(request, runnable=True)
    assert not Field(request, arrangement, Cuts(), known=Known()).options["actor"]
