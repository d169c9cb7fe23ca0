"""What each way to split a role costs, and which ways no plan needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.device_memory import MEMORY_STAGES
from flexrlhf.planning.placement.plan import RolePlacement
from flexrlhf.planning.search.bounds import Times
from flexrlhf.planning.search.degrees import role_placements
from flexrlhf.planning.search.evaluation import placed_role
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.role_work import RoleWork
from flexrlhf.planning.workflow.graph import Graph, Operation
from flexrlhf.planning.workflow.shape import IterationShape

SAMPLE_GRID: Final = (1, 4, 16, 64, 256, 1024)
"""Samples per replica, in a pass or decoded at once, at which options are compared."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to split a role."""

    role: Role
    placement: RolePlacement
    work: RoleWork | None = None
    """None for a role without a model."""
    profile: tuple[float, ...] = ()
    """Every time and size that a plan may feel: less in all is never worse."""
    busy_s: float = 0.0
    """Seconds of all its tasks in an iteration at the best sizes, whatever memory they take."""

    @property
    def resting_bytes(self) -> float:
        """What lies on a device throughout the run."""
        return self.work.resting_bytes if self.work else 0.0

    def times(self, available_bytes: float) -> Times:
        """Returns the seconds per stage with so many bytes beside what rests there."""
        return self.work.times(available_bytes) if self.work else {}


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
            return [Option(role, placement)]
        generates = request.spec.generates and role == self._arrangement.generating_role
        placements = role_placements(
            request.cluster, self._arrangement, role, model, generates=generates
        )
        options = [self._option(role, placement) for placement in placements]
        return sorted(options, key=lambda option: (option.busy_s, option.profile))

    def _option(self, role: Role, placement: RolePlacement) -> Option:
        placed = placed_role(self._request, self._arrangement.devices, role, placement)
        assert placed is not None
        work = RoleWork(self._request, placed, self._shape, self._tasks[role])
        rows = [work.seconds(placed.micro_batch_samples or size, size) for size in SAMPLE_GRID]
        sizes = [work.bytes(stage, size) for stage in MEMORY_STAGES for size in SAMPLE_GRID]
        times = [row[key] for key in rows[0] for row in rows]
        busy_s = sum(min(row[key] for row in rows) for key in rows[0])
        return Option(role, placement, work, (work.resting_bytes, *times, *sizes), busy_s)


def _is_at_most(profile: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(profile, other, strict=True))
