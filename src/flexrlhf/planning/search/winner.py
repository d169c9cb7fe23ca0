"""What is known of the winning plan beyond its JSON: memory by use, course of time, gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flexrlhf.core.names import Role, Stage
from flexrlhf.core.timeline import Timeline
from flexrlhf.planning.placement.device_memory import MEMORY_STAGES, Need
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import prepare
from flexrlhf.planning.search.plans import RankedPlans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.sensitivity import Gains, gains_of
from flexrlhf.planning.workflow.groups import DeviceGroup


@dataclass(frozen=True, slots=True)
class KindMemory:
    """The memory of devices that hold the same roles and are of one size."""

    devices: tuple[int, ...]
    roles: tuple[Role, ...]
    device_type: str
    memory_bytes: float
    limit_bytes: float
    """What a plan may fill of it."""
    needs: Mapping[Stage, Need]


@dataclass(frozen=True, slots=True)
class Winner:
    """The best plan and what stands behind it."""

    plan: Plan
    memory: tuple[KindMemory, ...]
    groups: tuple[DeviceGroup, ...]
    timeline: Timeline
    """Simulated, a track per group."""
    iteration: int
    """One of the steady state, as the timeline counts."""
    p99_iteration_s: float
    gains: Gains
    another_node: Mapping[str, float]
    """By what factor a node more would make iterations faster, per pool of nodes."""


def winner_of(request: PlanRequest, ranked: RankedPlans) -> Winner:
    """Returns the winner of a search.

    Raises:
        PlanError: nothing fits.
    """
    plan, found = ranked.best, ranked.found[0]
    simulation = found.best.simulation
    assert simulation is not None, "what fits was simulated"
    memory = prepare(request, found.wanted).memory
    return Winner(
        plan=plan,
        memory=tuple(
            KindMemory(
                devices=kind.devices,
                roles=kind.roles,
                device_type=request.cluster.device_type(kind.devices[0]).name,
                memory_bytes=kind.memory_bytes,
                limit_bytes=request.memory_fill * kind.memory_bytes,
                needs={stage: memory.need(kind, stage) for stage in MEMORY_STAGES},
            )
            for kind in memory.kinds
        ),
        groups=simulation.groups,
        timeline=simulation.timeline,
        iteration=simulation.window.last + 1,
        p99_iteration_s=simulation.percentile_s(99),
        gains=ranked.gains or gains_of(request, found.best, found.wanted),
        another_node=ranked.another_node,
    )
