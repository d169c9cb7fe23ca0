"""Work that unlike devices share by their speeds, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.cluster.catalogue import device_type
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.request import PlanRequest

A100, V100 = 312e12, 125e12
"""FLOP/s in 16 bits, as the vendor has them; V100 has float16 alone."""


@pytest.fixture
def request_on_both() -> PlanRequest:
    """Supervised training of a small model on one A100 and one V100."""
    first = Cluster.uniform("A100-80G", nodes=1, devices_per_node=1).nodes[0]
    second = replace(first, index=1, device=device_type("V100-32G"), devices=(1,), pool="other")
    cluster = Cluster((first, second), {frozenset({"all", "other"}): link_type("Ethernet-100G")})
    return PlanRequest(
        algorithm_spec("sft"),
        cluster,
        {"actor": HeldModel(shape_named("qwen2.5-1.5b"), is_trained=True)},
        Workload(64, Lengths.fixed(2048), Lengths.fixed(0)),
    )


def training_s(request: PlanRequest, placement: RolePlacement) -> float:
    plan = Plan(None, "colocated", feasible=False, why="", placement={"actor": placement})
    predicted = evaluate(request, plan).plan.predicted
    assert predicted is not None
    busy = 1 - predicted.shares["communication"]
    return predicted.stage_s["train"] * busy


def test_replicas_of_unlike_speed_end_together(request_on_both: PlanRequest):
    placement = RolePlacement((0, 1), data_parallel=2, zero_stage=1, micro_batch_samples=2)
    slowest_s = training_s(request_on_both, placement)
    shared_s = training_s(replace(request_on_both, shares_by_speed=True), placement)
    assert shared_s / slowest_s == pytest.approx(V100 / ((A100 + V100) / 2), rel=0.02)


def test_stages_of_a_pipeline_wait_for_the_slowest_all_the_same(request_on_both: PlanRequest):
    placement = RolePlacement((0, 1), pipeline_parallel=2, zero_stage=0, micro_batch_samples=2)
    by_speed = replace(request_on_both, shares_by_speed=True)
    assert training_s(by_speed, placement) == training_s(request_on_both, placement)


def test_devices_that_are_alike_gain_nothing(request_on_both: PlanRequest):
    alike = replace(
        request_on_both, cluster=Cluster.uniform("A100-80G", nodes=1, devices_per_node=2)
    )
    placement = RolePlacement((0, 1), data_parallel=2, zero_stage=1, micro_batch_samples=2)
    by_speed = replace(alike, shares_by_speed=True)
    assert training_s(by_speed, placement) == training_s(alike, placement)
