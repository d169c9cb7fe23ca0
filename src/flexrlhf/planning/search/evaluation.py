"""How good one placement is: what fits, and what the simulation says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from flexrlhf.core.names import SHADOWS, Role, Stage
from flexrlhf.planning.placement.device_memory import MEMORY_STAGES, DeviceMemory
from flexrlhf.planning.placement.fit import Fit, check_fit
from flexrlhf.planning.placement.placed_role import PlacedRole, engine_of, layout_of
from flexrlhf.planning.placement.plan import Plan, RolePlacement, is_apart
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.pass_sizes import best_pass, most_at_once
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.simulation.simulation import Simulation
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.binding import Durations
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.plan_durations import PlanDurations
from flexrlhf.planning.workflow.shape import IterationShape

_MOST_SAMPLES: Final = 1024
"""Samples per device beyond which no larger batch is looked for."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One placement, whether it fits, and its simulated run."""

    plan: Plan
    """With micro-batches, and predicted if it fits; neither ranked nor explained."""
    fit: Fit
    simulation: Simulation | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A placement with its micro-batches, before it is simulated."""

    plan: Plan
    roles: tuple[PlacedRole, ...]
    memory: DeviceMemory
    concurrent: float
    """Sequences that a replica of the engine decodes at once."""
    fit: Fit


def evaluate(
    request: PlanRequest,
    plan: Plan,
    *,
    requires_fit: bool = True,
) -> Evaluation:
    """Returns the simulated course of a plan whose degrees are chosen.

    Micro-batches that the plan leaves open become the largest that fit.

    Args:
        request: what is placed.
        plan: role by role devices and degrees, and the cuts of a rollout.
        requires_fit: what does not fit is not simulated. Off for runs that are known to have
            taken place, whatever our count of their bytes says.
    """
    prepared = prepare(request, plan, requires_fit=requires_fit)
    if requires_fit and not prepared.fit.is_feasible:
        return Evaluation(prepared.plan, prepared.fit)
    return run(request, prepared)


def prepare(
    request: PlanRequest,
    plan: Plan,
    *,
    requires_fit: bool = True,
) -> Prepared:
    """Returns a plan with the largest micro-batches that fit, and whether it fits.

    Args:
        request: what is placed.
        plan: role by role devices and degrees, and the cuts of a rollout.
        requires_fit: as for `evaluate`.
    """
    memory, roles, concurrent = _filled(
        request,
        _placed_roles(request, plan),
        plan.rollout_micro_batches or 1,
        least=1 if requires_fit else None,
    )
    fit = check_fit(memory, fill=request.memory_fill)
    placement = {
        role: replace(placed, micro_batch_samples=_micro_batch(roles, role))
        for role, placed in plan.placement.items()
    }
    plan = replace(plan, placement=placement, feasible=fit.is_feasible)
    return Prepared(plan, tuple(roles), memory, concurrent, fit)


def run(
    request: PlanRequest,
    prepared: Prepared,
    graph_of: Callable[[int], Graph] | None = None,
) -> Evaluation:
    """Returns the simulated course of a prepared plan.

    Args:
        request: what is placed.
        prepared: the plan.
        graph_of: makes the graph of an iteration; plans on the same devices have the same.
    """
    plan = prepared.plan
    shape = iteration_shape(request, plan)
    workers = request.workers
    if workers is not None:
        shape = workers.shape_of(request.spec, plan, shape)
        graph_of = None  # which is of other pieces
    graphs = graph_of or graph_source(request, plan, shape)
    simulation = simulate(
        graphs,
        _durations(request, prepared, graphs(0), shape),
        num_in_flight=shape.num_in_flight,
        sync_every=shape.sync_every,
        slowdown=None if workers is None else workers.slowdown,
    )
    predicted = _prediction(request, plan, prepared.roles, prepared.memory, simulation)
    return Evaluation(replace(plan, predicted=predicted), prepared.fit, simulation)


def _durations(
    request: PlanRequest, prepared: Prepared, graph: Graph, shape: IterationShape
) -> Durations:
    by_constants = PlanDurations(
        request.cluster,
        prepared.roles,
        graph=graph,
        shape=shape,
        workload=request.workload,
        memory=prepared.memory,
        calibration=request.calibration,
        concurrent=prepared.concurrent,
    )
    if request.workers is None:
        return by_constants
    return request.workers.durations(
        request.spec,
        prepared.plan,
        prepared.roles,
        graph=graph,
        shape=shape,
        peak_bytes=by_constants.peak_bytes,
        cluster=request.cluster,
    )


def graph_source(request: PlanRequest, plan: Plan, shape: IterationShape) -> Callable[[int], Graph]:
    """Returns what makes each iteration's graph once."""

    @cache
    def graph_of(iteration: int) -> Graph:
        return iteration_graph(request.spec, plan, shape, iteration)

    return graph_of


def iteration_shape(request: PlanRequest, plan: Plan) -> IterationShape:
    """Returns the cuts of an iteration; only shadows may generate with older weights."""
    is_apart = "shadow_actor" in plan.placement
    return IterationShape(
        num_samples=request.workload.num_samples,
        rollout_micro_batches=plan.rollout_micro_batches or 1,
        mini_batches=request.workload.mini_batches,
        epochs=request.workload.epochs,
        sync_every=(plan.sync_every or request.sync_every or 1) if is_apart else 1,
        max_staleness=request.max_staleness if is_apart else 0,
    )


def placed_role(
    request: PlanRequest,
    devices: Mapping[Role, Sequence[int]],
    role: Role,
    placement: RolePlacement,
) -> PlacedRole | None:
    """Returns a role in its place; None for one without a model.

    Args:
        request: what is placed.
        devices: of every role that has a place, shadows too.
        role: the one that is meant.
        placement: its devices and degrees.
    """
    model = request.model_of(role)
    if model is None:
        return None
    generator: Role = "shadow_actor" if "shadow_actor" in devices else "actor"
    generates = request.spec.generates and role == generator
    return PlacedRole(
        role,
        model,
        placement.devices,
        layout_of(placement),
        engine_of(placement, request.engine) if generates else None,
        scores=SHADOWS.get(role) not in devices,
        is_apart=is_apart(devices, role),
        is_shared_by_speed=request.shares_by_speed and placement.pipeline_parallel == 1,
        micro_batch_samples=placement.micro_batch_samples or 0,
    )


def _placed_roles(request: PlanRequest, plan: Plan) -> list[PlacedRole]:
    devices: dict[Role, tuple[int, ...]] = {r: p.devices for r, p in plan.placement.items()}
    placed = [placed_role(request, devices, role, p) for role, p in plan.placement.items()]
    return [role for role in placed if role is not None]


def _filled(
    request: PlanRequest, roles: Sequence[PlacedRole], parts: int, *, least: int | None
) -> tuple[DeviceMemory, list[PlacedRole], float]:
    """Returns memory and roles with the largest micro-batches, and sequences decoded at once.

    Where not one sequence fits, `least` are decoded at once; None: all, since a run that took place
    must have made room.
    """
    bare = DeviceMemory(
        request.cluster, roles, request.workload, request.calibration, generation_samples=0.0
    )
    at_once, concurrent, filled = 1.0, 1.0, list[PlacedRole]()
    for placed in roles:

        def largest(stage: Stage, most: int, placed: PlacedRole = placed) -> int:
            return bare.largest_samples(placed, stage, fill=request.memory_fill, most=most)

        if placed.engine is not None:
            share = most_at_once(request, placed, parts)
            found = largest("generate", share)
            if least is None and placed.engine.copies_cache:
                found = share  # a batch that was generated has fitted
            concurrent = float(found or least or share)
            at_once = concurrent * placed.engine_replicas
        filled.append(placed.with_micro_batch(best_pass(request, placed, largest)))
    return bare.with_passes(filled, at_once), filled, concurrent


def _micro_batch(roles: Sequence[PlacedRole], role: Role) -> int | None:
    return next((p.micro_batch_samples for p in roles if p.role == role), None)


def _prediction(
    request: PlanRequest,
    plan: Plan,
    roles: Sequence[PlacedRole],
    memory: DeviceMemory,
    simulation: Simulation,
) -> Prediction:
    iteration_s = simulation.iteration_s
    price = request.cluster.price_per_hour(plan.devices)
    samples = request.workload.num_samples
    peak: dict[int, Mapping[Stage, int]] = {}
    for kind in memory.kinds:
        needs: dict[Stage, int] = {s: int(memory.need(kind, s).total) for s in MEMORY_STAGES}
        peak |= dict.fromkeys(kind.devices, needs)
    return Prediction(
        iteration_s=iteration_s,
        samples_per_s=samples / iteration_s,
        stage_s=simulation.stage_s(),
        shares=simulation.shares(),
        peak_bytes=dict(sorted(peak.items())),
        copies={placed.role: _copies(placed) for placed in roles},
        max_batch=_max_batch(request, memory, roles),
        cost_per_1k_samples=(
            None if price is None else price / 3600 * iteration_s / samples * 1000
        ),
    )


def _copies(placed: PlacedRole) -> float:
    """Whole copies of the weights at rest over all devices of the role."""
    return len(placed.devices) / placed.layout.weight_parts


def _max_batch(request: PlanRequest, memory: DeviceMemory, roles: Sequence[PlacedRole]) -> int:
    """Samples per device that generation and training can hold at once."""
    found = [_MOST_SAMPLES]
    for placed in roles:
        if placed.model.is_trained:
            found.append(
                memory.largest_samples(
                    placed, "train", fill=request.memory_fill, most=_MOST_SAMPLES
                )
            )
        if placed.engine is not None:
            most = _MOST_SAMPLES * placed.engine.tensor
            fitting = memory.largest_samples(
                placed, "generate", fill=request.memory_fill, most=most
            )
            found.append(fitting // placed.engine.tensor)
    return min(found)
