"""Twice the memory lets another plan win, or a larger batch be one pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Search

SPEC = algorithm_spec("ppo")


def request_for(shape, device, *, lora_rank=None):
    models = {
        role: HeldModel(
            shape_named(shape),
            head="value" if role in ("critic", "reward") else "language_model",
            weight_dtype="float32" if role in SPEC.trained and not lora_rank else "bfloat16",
            is_trained=role in SPEC.trained,
            lora_rank=lora_rank if role in SPEC.trained else None,
            recomputes=lora_rank is None,
        )
        for role in SPEC.models
    }
    workload = Workload(256, Lengths.fixed(128), Lengths.fixed(128))
    cluster = Cluster.uniform(device, nodes=1, devices_per_node=8)
    engine = Engine(continuous=False, launches=30, copies_cache=True, shares_prompts=False)
    return PlanRequest(SPEC, cluster, models, workload, engine)


def doubled(request):
    (node,) = request.cluster.nodes
    device = replace(node.device, memory_bytes=2 * node.device.memory_bytes)
    cluster = Cluster((replace(node, device=device),), request.cluster.between)
    return replace(request, cluster=cluster)


def test_13b_on_small_devices_is_bound_by_memory():
    request = request_for("llama-13b", "A100-40G")
    ranked = ranked_plans(request)
    best = ranked_plans(doubled(request)).best
    gain = ranked.best.predicted.iteration_s / best.predicted.iteration_s
    assert gain > 1.1
    assert ranked.memory.gain == pytest.approx(gain)
    assert ranked.memory.strategy == best.strategy
    assert ranked.best.bound_by == ranked.gains.bound_by == "memory"
    assert f"twice the memory x{gain:.2f} (by {best.strategy}, planned anew)" in ranked.best.why


def test_where_no_other_plan_wins_memory_gives_nothing():
    ranked = ranked_plans(request_for("llama-7b", "A100-80G"))
    assert (ranked.memory.gain, ranked.memory.strategy) == (1.0, None)
    assert ranked.best.bound_by == "compute"
    assert "planned anew" not in ranked.best.why


def test_with_room_for_everything_no_other_plan_is_looked_for(monkeypatch):
    """The answer of the whole search stays, and none is begun."""
    request = request_for("smollm2-135m", "A100-80G")
    request = replace(request, workload=replace(request.workload, num_samples=32))
    best = ranked_plans(doubled(request)).best
    monkeypatch.setattr(Search, "with_memory_of", None)
    ranked = ranked_plans(request)
    assert (ranked.memory.gain, ranked.memory.strategy) == (1.0, None)
    assert ranked.best.predicted.iteration_s == best.predicted.iteration_s


def test_a_cache_that_fits_in_parts_only_leaves_no_room():
    request = request_for("llama-7b", "A100-40G")
    candidates = arrangements("colocated", SPEC, request.cluster)
    assert not Search(request).has_room(candidates)
    assert Search(request_for("smollm2-135m", "A100-80G")).has_room(candidates)


def test_a_batch_in_one_pass_is_bound_by_memory():
    """As the paper runs 7B and 13B: adapters, a batch as large as memory holds at once."""
    request = request_for("llama-13b", "A100-80G", lora_rank=128)
    degrees = {role: {"tensor_parallel": 1, "pipeline_parallel": 1} for role in SPEC.models}
    ranked = ranked_plans(request, Choices(strategy="colocated", degrees=degrees))
    largest = ranked.memory.largest
    assert largest.doubled_samples > 2 * largest.samples
    rates = []
    for one, samples in (
        (request, largest.samples),
        (doubled(request), largest.doubled_samples),
    ):
        workload = replace(one.workload, num_samples=8 * samples)
        found = evaluate(replace(one, workload=workload), ranked.found[0].wanted).plan.predicted
        assert found.max_batch == samples
        rates.append(found.samples_per_s)
    assert largest.gain == pytest.approx(rates[1] / rates[0])
    assert f"{largest.samples} samples a device would fit" in ranked.best.why


def test_nothing_is_said_of_a_batch_that_is_given():
    request = replace(
        request_for("llama-7b", "A100-80G"),
        spec=algorithm_spec("sft"),
        models={"actor": HeldModel(shape_named("llama-7b"), is_trained=True)},
    )
    ranked = ranked_plans(request, Choices(strategy="colocated"))
    assert ranked.memory.largest is None
    assert "one pass" not in ranked.best.why
