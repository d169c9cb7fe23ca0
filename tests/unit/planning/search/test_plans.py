"""Plans are ranked, explained, and refused with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.digits import three_digits
from flexrlhf.core.errors import PlanError
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.sensitivity import gains_of


def request_for(algorithm="ppo", *, name="llama-7b", device="A100-80G", nodes=1, **options):
    spec = algorithm_spec(algorithm, **options)
    shape = shape_named(name)
    models = {
        role: HeldModel(
            shape,
            head="value" if role in ("critic", "reward") else "language_model",
            is_trained=role in spec.trained,
        )
        for role in spec.models
    }
    workload = Workload(128, Lengths.fixed(128), Lengths.fixed(128), mini_batches=2)
    cluster = Cluster.uniform(device, nodes=nodes, devices_per_node=4)
    return PlanRequest(spec, cluster, models, workload)


def of_strategy(ranked, strategy):
    return next(plan for plan in ranked.plans if plan.strategy == strategy)


def test_plans_come_best_first_and_say_why():
    ranked = ranked_plans(request_for(), Choices(strategy="auto"))
    fitting = [plan for plan in ranked.plans if plan.feasible]
    times = [plan.predicted.iteration_s for plan in fitting]
    assert times == sorted(times)
    assert [plan.rank for plan in fitting] == list(range(1, len(fitting) + 1))
    assert fitting[0].chosen_by == "auto"
    assert f"Bound by {fitting[0].bound_by}" in fitting[0].why
    assert all("times the best" in plan.why for plan in fitting[1:])
    assert all(f"; bound by {plan.bound_by} (" in plan.why for plan in fitting[1:])
    assert ranked.search["simulated"] < ranked.search["candidates"]


def test_the_winner_says_what_its_stages_take_and_where_the_next_loses():
    ranked = ranked_plans(request_for(), Choices(strategy="auto"))
    best, *others = (plan.predicted for plan in ranked.plans if plan.feasible)
    for words, stage in (("generation", "generate"), ("scoring", "score"), ("training", "train")):
        assert f"{words} {best.stage_s[stage]:.3g} s" in ranked.best.why
    losses = {stage: others[-1].stage_s[stage] - best.stage_s[stage] for stage in best.stage_s}
    worst = max(losses, key=losses.get)
    assert losses[worst] > 0.1 * best.iteration_s
    last = ranked.plans[len(others)].why
    seconds = [three_digits(predicted.stage_s[worst]) for predicted in (others[-1], best)]
    assert f"{seconds[0]} s instead of {seconds[1]} s" in last


def test_a_loser_that_gathers_for_every_token_is_bound_by_its_links():
    """Its gathers count as generation, so that the share of data moved is small."""
    ranked = ranked_plans(request_for(nodes=2))
    plan = of_strategy(ranked, "zero3_generation")
    found = next(f for f in ranked.found if f.strategy == "zero3_generation")
    gain = gains_of(request_for(nodes=2), found.best, found.wanted).communication
    assert plan.bound_by == "communication"
    assert gain > 1.2
    assert f"bound by communication (links twice as fast would give x{gain:.2f})" in plan.why


def test_where_cost_ranks_the_sentences_compare_costs():
    """On twice as many devices of which half lie idle, the faster plan is the dearer one."""
    request = replace(request_for(nodes=2), objective="cost")
    ranked = ranked_plans(request, Choices(strategy="auto"))
    fitting = [plan for plan in ranked.plans if plan.feasible]
    costs = [plan.predicted.cost_per_1k_samples for plan in fitting]
    assert costs == sorted(costs)
    assert f"{three_digits(costs[0])} USD for 1,000 samples" in fitting[0].why
    for plan, cost in zip(fitting[1:], costs[1:], strict=True):
        level = " (level)" if cost / costs[0] < 1.03 else ""
        assert f"{cost / costs[0]:.2f} times the best{level}:" in plan.why
        if len(plan.devices) != len(fitting[0].devices):
            assert f"{len(plan.devices)} devices instead of {len(fitting[0].devices)}" in plan.why


def test_shares_of_a_plan_add_up():
    for plan in ranked_plans(request_for(), Choices(strategy="colocated")).plans:
        assert sum(plan.predicted.shares.values()) == pytest.approx(1.0, abs=0.01)


def test_a_plan_that_does_not_fit_says_which_phase_lacks_how_much():
    ranked = ranked_plans(
        request_for(name="llama-65b", device="V100-32G"), Choices(strategy="colocated")
    )
    (plan,) = ranked.plans
    assert not plan.feasible
    assert plan.rank is None
    assert "Out of memory: actor" in plan.why
    assert "GiB" in plan.why
    with pytest.raises(PlanError, match="No placement fits"):
        _ = ranked.best


def test_grpo_without_a_reference_has_nothing_to_interleave():
    request = request_for("grpo", uses_reference=False)
    plan = of_strategy(ranked_plans(request, Choices(strategy="interleaved_1")), "interleaved_1")
    assert not plan.feasible
    assert "reward" in plan.why


def test_dpo_generates_nothing_so_it_is_not_disaggregated():
    ranked = ranked_plans(request_for("dpo"), Choices(strategy="disaggregated"))
    assert "generates nothing" in ranked.plans[0].why


def test_a_limit_on_the_slowest_iterations_rules_plans_out():
    request = replace(request_for(), max_p99_iteration_s=1e-3)
    (plan,) = ranked_plans(request, Choices(strategy="colocated")).plans
    assert not plan.feasible
    assert "max_p99_iteration_s = 0.001" in plan.why


def test_faster_generation_moves_devices_to_training():
    bare = request_for("grpo", nodes=2, uses_reference=False, has_reward_model=False)
    workload = Workload(1024, Lengths.fixed(128), Lengths.fixed(1024), mini_batches=2)
    request = replace(bare, workload=workload)
    quick = replace(request, workload=replace(request.workload, speedup=4.0))
    choices = Choices(strategy="disaggregated")
    usual, moved = (ranked_plans(r, choices).best.placement for r in (request, quick))
    assert len(moved["actor"].devices) > len(usual["actor"].devices)


def test_the_same_request_gives_the_same_plans():
    first, second = (ranked_plans(request_for(), Choices(strategy="colocated")) for _ in range(2))
    assert first.plans == second.plans


def test_weights_are_counted_in_copies():
    ranked = ranked_plans(
        request_for(),
        Choices(
            strategy="colocated",
            degrees={"reference": {"zero_stage": 0, "tensor_parallel": 1}},
        ),
    )
    assert ranked.best.predicted.copies["reference"] == 4.0


def test_no_plan_cuts_a_head_in_parts():
    """LLaMA-33B has 52 heads: 8 devices of a node cannot share them evenly."""
    request = replace(
        request_for("grpo", name="llama-33b", uses_reference=False, has_reward_model=False),
        cluster=Cluster.uniform("H100-80G", nodes=4, devices_per_node=8),
    )
    for strategy in ("tp_generation", "disaggregated"):
        for plan in ranked_plans(request, Choices(strategy=strategy)).plans:
            for placement in plan.placement.values():
                assert 52 % placement.tensor_parallel == 0
                assert 52 % (placement.generation_tensor_parallel or 1) == 0


def test_a_degree_that_cuts_a_head_is_refused():
    choices = Choices(strategy="colocated", degrees={"actor": {"tensor_parallel": 3}})
    request = replace(
        request_for(), cluster=Cluster.uniform("A100-80G", nodes=1, devices_per_node=6)
    )
    with pytest.raises(PlanError, match="llama-7b has 32 attention heads"):
        ranked_plans(request, choices)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "sft"])
@pytest.mark.parametrize(("nodes", "device"), [(1, "A100-80G"), (2, "V100-32G")])
def test_a_run_that_waits_for_no_advice_takes_the_best_of_all(algorithm, nodes, device):
    request = request_for(algorithm, nodes=nodes, device=device)
    every, fastest = ranked_plans(request), ranked_plans(request, advised=False)
    assert fastest.best.placement == every.best.placement
    assert fastest.best.strategy == every.best.strategy
    assert fastest.best.predicted.iteration_s == every.best.predicted.iteration_s
    assert fastest.search["simulated"] <= every.search["simulated"]
