"""The search finds what a look at every combination finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.arrangement import Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Search


def shape(layers: int, hidden: int) -> ModelShape:
    return ModelShape(
        name=f"{layers}x{hidden}",
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=4,
        kv_heads=4,
        head_dim=hidden // 4,
        vocab=1000,
    )


@st.composite
def requests(draw):
    spec = algorithm_spec(draw(st.sampled_from(["ppo", "grpo", "dpo"])))
    cluster = Cluster.uniform(
        draw(st.sampled_from(["V100-32G", "A100-80G"])),
        nodes=draw(st.integers(1, 2)),
        devices_per_node=draw(st.sampled_from([1, 2])),
    )
    trained = shape(draw(st.sampled_from([4, 48])), draw(st.sampled_from([256, 8192])))
    frozen = shape(draw(st.sampled_from([4, 48])), draw(st.sampled_from([256, 8192])))
    models = {
        role: HeldModel(
            trained if role in spec.trained else frozen,
            head="value" if role in ("critic", "reward") else "language_model",
            is_trained=role in spec.trained,
        )
        for role in spec.models
    }
    workload = Workload(
        num_samples=draw(st.sampled_from([8, 64])),
        prompt=Lengths.fixed(64),
        response=Lengths.fixed(draw(st.sampled_from([32, 512]))),
        mini_batches=draw(st.sampled_from([1, 2])),
    )
    engine = Engine(has_own_copy=draw(st.booleans()))
    return PlanRequest(
        spec,
        cluster,
        models,
        workload,
        engine,
        sync_every=None,
        max_staleness=draw(st.integers(0, 2)),
        objective=draw(st.sampled_from(["throughput", "cost"])),
    )


SIMPLE = {"zero_stage": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "offload": False}
"""Degrees that leave a role one option, so that trying everything takes seconds."""


@pytest.mark.parametrize("strategy", ["colocated", "interleaved_1", "disaggregated"])
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests(), choice=st.integers(0, 100), data=st.data())
def test_the_search_is_as_good_as_trying_everything(strategy, request, choice, data):
    roles = (*request.spec.models, "shadow_actor", "shadow_critic")
    free = data.draw(st.sets(st.sampled_from(roles), min_size=1, max_size=2))
    found = arrangements(strategy, request.spec, request.cluster)
    assume(not isinstance(found, Refusal))
    arrangement = found[choice % len(found)]
    fixed = {role: SIMPLE for role in arrangement.devices if role not in free}
    one = [replace(arrangement, fixed=fixed)]
    pruned, brute = Search(request), Search(request, exhaustive=True)
    best, true_best = pruned.best_of(one), brute.best_of(one)
    assert best is not None
    assert true_best is not None
    assert best.best.plan.feasible == true_best.best.plan.feasible
    if best.best.plan.feasible:
        assert pruned.score(best.best) == pytest.approx(brute.score(true_best.best), rel=1e-9)
        assert pruned.summary["simulated"] <= brute.summary["simulated"]
