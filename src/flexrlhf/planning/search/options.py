"""What each way to split a role costs, and which ways no plan needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.device_memory import MEMORY_STAGES, DeviceMemory
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.placement.plan import RolePlacement
from flexrlhf.planning.search.degrees import role_placements
from flexrlhf.planning.search.evaluation import placed_role
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.workflow.graph import Graph, Operation
from flexrlhf.planning.workflow.role_seconds import RoleSeconds
from flexrlhf.planning.workflow.shape import IterationShape

SAMPLE_GRID: Final = (1, 4, 16, 64, 256, 1024)
"""Samples per replica, in a pass or decoded at once, for which every option is looked at."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the tasks of one stage take, per size of the grid."""

    seconds: tuple[float, ...]
    """Of all tasks of an iteration."""
    working_bytes: tuple[float, ...]
    """Per device, beside what rests there."""

    def least_s(self, available_bytes: float) -> float:
        """Returns the seconds that no size which fits can beat; infinite where none fits.

        Larger sizes never take longer, except that a pipeline wants several passes. What fits may
        lie between two sizes of the grid, so the next larger one counts.
        """
        fitting = sum(1 for size in self.working_bytes if size <= available_bytes)
        if fitting == 0:
            return float("inf")
        return min(self.seconds[: fitting + 1])


@dataclass(frozen=True, slots=True)
class Option:
    """One way to split a role."""

    role: Role
    placement: RolePlacement
    resting_bytes: float
    loads: Mapping[Stage, Load]

    @property
    def busy_s(self) -> float:
        """Seconds of all its tasks in an iteration, if it had all memory."""
        return sum(min(load.seconds) for load in self.loads.values())

    def least_s(self, available_bytes: float) -> dict[tuple[Role, Stage], float]:
        """Returns the seconds per stage that it takes at least with so many bytes beside its own.

        They are infinite in a stage whose smallest pass does not fit.
        """
        return {
            (self.role, stage): load.least_s(available_bytes) for stage, load in self.loads.items()
        }

    @property
    def profile(self) -> tuple[float, ...]:
        """Every time and size that a plan may feel: less in all is never worse."""
        rows = (row for load in self.loads.values() for row in (load.seconds, load.working_bytes))
        return (self.resting_bytes, *(value for row in rows for value in row))


class RoleOptions:
    """Finds the options of roles in one arrangement.

    Args:
        request: what is placed.
        arrangement: which role sits where.
        graph: of an iteration under it.
        shape: the same iteration's cuts.
    """

    def __init__(
        self, request: PlanRequest, arrangement: Arrangement, graph: Graph, shape: IterationShape
    ) -> None:
        self._request = request
        self._arrangement = arrangement
        self._shape = shape
        self._tasks: dict[Role, Counter[tuple[Stage, Operation]]] = {
            role: Counter((t.stage, t.operation) for t in graph.tasks if t.role == role)
            for role in arrangement.devices
        }
        self._times: dict[Role, dict[tuple[RolePlacement, int, float], Mapping[Stage, float]]] = {}

    def of(self, role: Role) -> list[Option]:
        """Returns the options of a role, fastest first, without those that another dominates.

        One is left out only if another has at most its time at every size of a pass, and at most
        its bytes, in every stage.
        """
        kept: list[Option] = []
        profiles: list[tuple[float, ...]] = []
        for option in self.all_of(role):
            profile = option.profile
            if not any(_is_at_most(better, profile) for better in profiles):
                kept.append(option)
                profiles.append(profile)
        return kept

    def all_of(self, role: Role) -> list[Option]:
        """Returns every option of a role, fastest first; without a model it has only one."""
        request, devices = self._request, self._arrangement.devices[role]
        model = request.model_of(role)
        if model is None:
            placement = RolePlacement(devices, data_parallel=len(devices))
            return [Option(role, placement, 0.0, {})]
        generates = request.spec.generates and role == self._arrangement.generating_role
        placements = role_placements(
            request.cluster, self._arrangement, role, model, generates=generates
        )
        options = [self._option(role, placement) for placement in placements]
        return sorted(options, key=lambda option: (option.busy_s, option.profile))

    def stage_s(
        self, option: Option, placed: PlacedRole, concurrent: float
    ) -> Mapping[Stage, float]:
        """Returns the seconds of a role's tasks per stage with the micro-batches that it has."""
        key = (option.placement, placed.micro_batch_samples, concurrent if placed.engine else 0.0)
        per_role = self._times.setdefault(option.role, {})
        if key not in per_role:
            seconds = self._seconds_of(placed)
            per_role[key] = self._stage_s(seconds, placed, placed.micro_batch_samples, concurrent)
        return per_role[key]

    def _option(self, role: Role, placement: RolePlacement) -> Option:
        placed = placed_role(self._request, self._arrangement.devices, role, placement)
        assert placed is not None
        memory = DeviceMemory(
            self._request.cluster,
            [placed],
            self._request.workload,
            self._request.calibration,
            generation_samples=0.0,
        )
        seconds = self._seconds_of(placed)
        bytes_of = {stage: _bytes(memory, placed, stage) for stage in MEMORY_STAGES}
        rows = [
            self._stage_s(seconds, placed, placed.micro_batch_samples or size, float(size))
            for size in SAMPLE_GRID
        ]
        stages: list[Stage] = [s for s in MEMORY_STAGES if bytes_of[s] is not None or s in rows[0]]
        nothing = (0.0,) * len(SAMPLE_GRID)
        loads: dict[Stage, Load] = {
            stage: Load(
                tuple(row.get(stage, 0.0) for row in rows),
                bytes_of[stage] or nothing,
            )
            for stage in stages
        }
        resting = max(kind.resting_bytes for kind in memory.kinds)
        return Option(role, placement, resting, loads)

    def _seconds_of(self, placed: PlacedRole) -> RoleSeconds:
        request = self._request
        return RoleSeconds(
            request.cluster, placed, self._shape, request.workload, request.calibration
        )

    def _stage_s(
        self, seconds: RoleSeconds, placed: PlacedRole, micro_batch: int, concurrent: float
    ) -> dict[Stage, float]:
        """Seconds of all tasks of the role per stage."""
        found: dict[Stage, float] = {}
        for (stage, operation), count in self._tasks[placed.role].items():
            taken = seconds.of(operation, micro_batch=micro_batch, concurrent=concurrent)
            once_s = taken.compute_s + self._request.calibration.task_s + taken.communication_s
            found[stage] = found.get(stage, 0.0) + count * once_s
        return found


def _bytes(memory: DeviceMemory, placed: PlacedRole, stage: Stage) -> tuple[float, ...] | None:
    found = [memory.working_bytes(placed, stage, samples=size) for size in SAMPLE_GRID]
    if any(parts is None for parts in found):
        return None
    return tuple(sum(parts.values()) for parts in found if parts is not None)


def _is_at_most(profile: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(profile, other, strict=True))
