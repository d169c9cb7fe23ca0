"""How often new weights travel: as the config says, or as is best within the staleness allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest

SLOW = Link("slow", bandwidth=5e8, latency_s=1e-4, source="this test")
"""14 GB of weights take half a minute."""


def request_for(*, max_staleness, sync_every):
    spec = algorithm_spec("grpo", uses_reference=False, has_reward_model=False)
    return PlanRequest(
        spec,
        Cluster.uniform("A100-80G", nodes=2, devices_per_node=4, between=SLOW),
        {"actor": HeldModel(shape_named("llama-7b"), is_trained=True)},
        Workload(64, Lengths.fixed(128), Lengths.fixed(128)),
        max_staleness=max_staleness,
        sync_every=sync_every,
    )


def best(request):
    return ranked_plans(request, Choices(strategy="disaggregated"), advised=False).best


def test_a_slow_link_is_used_as_seldom_as_staleness_allows():
    plan = best(request_for(max_staleness=3, sync_every=None))
    assert plan.sync_every is not None
    assert plan.sync_every > 1
    fixed = [best(request_for(max_staleness=3, sync_every=every)) for every in (1, 2, 3, 4)]
    assert plan.predicted.iteration_s == pytest.approx(
        min(other.predicted.iteration_s for other in fixed)
    )


def test_without_staleness_weights_are_new_in_every_iteration():
    assert best(request_for(max_staleness=0, sync_every=None)).sync_every == 1


def test_what_generates_with_the_trained_weights_has_no_period():
    request = request_for(max_staleness=3, sync_every=None)
    plan = ranked_plans(request, Choices(strategy="colocated")).best
    assert plan.sync_every == 1
    again = ranked_plans(replace(request, sync_every=1), Choices(strategy="colocated")).best
    assert plan.predicted.iteration_s == again.predicted.iteration_s
