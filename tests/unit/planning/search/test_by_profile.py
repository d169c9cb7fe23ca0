"""Plans of several processes are timed by the profile, and the best of them is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import this_machine
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.setting import typical_cpu
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import (
    Crowd,
    GroupCost,
    ParcelCost,
    RoundTrip,
    ShardedCost,
    WeightCost,
    WorkerCosts,
)
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.arrangement import Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import NO_CHOICES, Choices
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.field import Cuts, Field, Known
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Search
from flexrlhf.planning.search.worker_run import WorkerRun

SHAPE = ModelShape("tiny", 4, 256, 682, heads=8, kv_heads=8, head_dim=32, vocab=512)


def profile(share_byte_s: float = 2e-9) -> Profile:
    """The packaged processor, with round costs of processes."""
    found = typical_cpu(this_machine())
    sharded = ShardedCost(0.004, 2e-9)
    group = GroupCost(2, 4e-4, 0.01, 1e-9, share_byte_s, sharded, sharded, sharded)
    return found.with_workers(
        WorkerCosts(
            cores=2,
            costs=found.costs,
            crowds=(Crowd(1, 1.0), Crowd(2, 1.2), Crowd(4, 2.4)),
            groups=(group,),
            parcels=ParcelCost(3e-4, 4e-10, 5e-5),
            weights=WeightCost(1e-3, 3e-4, 2e-9, 7e-10),
            round_trips=(RoundTrip(1, 1e-3), RoundTrip(2, 1.5e-3)),
        )
    )


def request_on(machine: Profile, workers: int, algorithm: str = "grpo") -> PlanRequest:
    """A small job of 32 answers on so many processes."""
    spec = algorithm_spec(algorithm)
    models = {
        role: HeldModel(
            SHAPE,
            head="value" if role in ("critic", "reward") else "language_model",
            weight_dtype="float32",
            compute_dtype="float32",
            is_trained=role in spec.trained,
            recomputes=False,
        )
        for role in spec.models
        if algorithm == "ppo" or role != "reward"
    }
    sequences = (SequenceLength(16.0, 32.0),) * 32
    assert machine.workers is not None
    return PlanRequest(
        spec,
        machine.workers_cluster(workers, 1),
        models,
        Workload(32, Lengths.fixed(16), Lengths.fixed(32)),
        workers=WorkerRun(
            machine.workers, RunWork(sequences, PassLimit(max_items=8)), has_limit=True
        ),
        runnable=True,
    )


@pytest.mark.parametrize("strategy", ["colocated", "tp_generation", "disaggregated"])
def test_the_best_of_all_combinations_is_found(strategy: str) -> None:
    request = request_on(profile(), 2)
    found = arrangements(strategy, request.spec, request.cluster, NO_CHOICES)
    assert not isinstance(found, Refusal)
    best = Search(request).best_of(found)
    assert best is not None
    assert best.best.plan.predicted is not None
    plain = replace(request, workers=None)
    times = [
        evaluation.plan.predicted.iteration_s
        for arrangement in found
        for parts in ((1, 2, 4, 8) if strategy == "disaggregated" else (1,))
        for field in [Field(plain, arrangement, Cuts(parts), known=Known())]
        for options in field.every_combination()
        for evaluation in [evaluate(request, field.plan_of(options))]
        if evaluation.plan.predicted is not None
    ]
    assert best.best.plan.predicted.iteration_s == pytest.approx(min(times))


def test_what_the_profile_says_decides_how_a_role_is_sharded() -> None:
    stages: list[int] = []
    for share_byte_s in (1e-9, 1e-6):
        ranked = ranked_plans(request_on(profile(share_byte_s), 2), Choices(strategy="colocated"))
        stages.append(ranked.best.placement["actor"].zero_stage)
    assert stages[0] == 1
    assert stages[1] != 1


def test_four_processes_on_two_cores_are_no_faster_than_two() -> None:
    times: list[float] = []
    for workers in (2, 4):
        ranked = ranked_plans(request_on(profile(), workers, "ppo"), Choices(strategy="colocated"))
        assert ranked.best.predicted is not None
        times.append(ranked.best.predicted.iteration_s)
    assert times[1] >= times[0]


def test_groups_that_share_cores_hold_each_other_up() -> None:
    machine = profile()
    assert machine.workers is not None
    free = replace(machine.workers, crowds=(Crowd(1, 1.0),))
    apart = ranked_plans(request_on(machine, 4), Choices(strategy="disaggregated")).best
    request = request_on(machine.with_workers(free), 4)
    assert request.workers is not None
    lone = evaluate(request, replace(apart, predicted=None)).plan.predicted
    assert apart.predicted is not None
    assert lone is not None
    assert lone.iteration_s != pytest.approx(apart.predicted.iteration_s, rel=0.01)


def on_two_machines(rate: float, *, speed: float = 1.0) -> PlanRequest:
    """The small job on a core of each of two machines.

    Args:
        rate: bytes/s between them.
        speed: of the second by the first.
    """
    request = request_on(profile(), 2)
    (node,) = request.cluster.nodes
    assert request.workers is not None
    flops = request.workers.costs.costs.most_flops
    nodes = tuple(
        Node(
            place,
            replace(node.device, flops={"float32": flops * part}),
            (place,),
            node.link,
            "ray",
        )
        for place, part in enumerate((1.0, speed))
    )
    link = Link("slow", rate, 0.0, "here", is_measured=True)
    cluster = Cluster(nodes, {frozenset({"ray"}): link})
    return replace(request, cluster=cluster, workers=replace(request.workers, are_apart=True))


APART: dict[Role, RolePlacement] = {
    "actor": RolePlacement((0,)),
    "shadow_actor": RolePlacement((1,)),
    "reference": RolePlacement((1,)),
    "reward": RolePlacement((1,)),
}
SHARDED = RolePlacement((0, 1), data_parallel=2, zero_stage=3)


def stages_of(request: PlanRequest, placement: Mapping[Role, RolePlacement]) -> Mapping[str, float]:
    plan = Plan(rank=1, strategy="custom", feasible=True, why="", placement=placement)
    predicted = evaluate(request, plan).plan.predicted
    assert predicted is not None
    return predicted.stage_s


def test_weights_take_their_bytes_over_the_link_between_machines() -> None:
    num_bytes = SHAPE.num_params * 4
    slow, fast = (stages_of(on_two_machines(rate), APART) for rate in (1e6, 1e12))
    assert slow["sync"] - fast["sync"] == pytest.approx(num_bytes / 1e6, rel=0.01)
    assert slow["generate"] == pytest.approx(fast["generate"])


def test_weights_gathered_for_every_token_cross_the_link_for_every_token() -> None:
    actor = replace(SHARDED, generation="per_token")
    placement: dict[Role, RolePlacement] = {
        "actor": actor,
        "reference": SHARDED,
        "reward": SHARDED,
    }
    slow, fast = (stages_of(on_two_machines(rate), placement) for rate in (1e6, 1e12))
    longer_s = slow["generate"] - fast["generate"]
    steps = 32  # of which the first reads the prompts
    assert longer_s == pytest.approx(steps * SHAPE.num_params * 4 / 2 / 1e6, rel=0.05)


def test_a_slow_machine_takes_longer_for_what_it_does() -> None:
    even, uneven = (stages_of(on_two_machines(1e12, speed=s), APART) for s in (1.0, 0.5))
    assert uneven["train"] == pytest.approx(even["train"], rel=0.01)
    assert uneven["generate"] == pytest.approx(2 * even["generate"], rel=0.1)
