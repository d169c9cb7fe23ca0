"""Every way to split a role, and what it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import RolePlacement
from flexrlhf.planning.placement.runnable import obstacle, unsplittable
from flexrlhf.planning.search.bounds import Times
from flexrlhf.planning.search.degrees import role_placements
from flexrlhf.planning.search.evaluation import placed_role
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.role_work import RoleWork
from flexrlhf.planning.workflow.graph import Graph, Operation
from flexrlhf.planning.workflow.shape import IterationShape


@dataclass(frozen=True, slots=True)
class Option:
    """One way to split a role."""

    role: Role
    placement: RolePlacement
    work: RoleWork | None = None
    """None for a role without a model."""

    @property
    def resting_bytes(self) -> float:
        """What lies on a device throughout the run."""
        return self.work.resting_bytes if self.work else 0.0

    @property
    def least_bytes(self) -> float:
        """The same and what the smallest pass of the hungriest stage adds."""
        return self.work.least_bytes if self.work else 0.0

    @property
    def most_bytes(self) -> float:
        """The same and what the largest passes that make sense add."""
        return self.work.most_bytes if self.work else 0.0

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
        """Returns every way to split a role; without a model it has only one."""
        request, devices = self._request, self._arrangement.devices[role]
        model = request.model_of(role)
        if model is None:
            placement = RolePlacement(devices, data_parallel=len(devices))
            return [Option(role, placement)]
        generates = request.spec.generates and role == self._arrangement.generating_role
        placements = role_placements(
            request.cluster,
            self._arrangement,
            role,
            model,
            generates=generates,
            on_workers=request.runnable,
        )
        if request.runnable:
            placements = [p for p in placements if _can_run(p, model)]
        return [self._option(role, placement) for placement in placements]

    def _option(self, role: Role, placement: RolePlacement) -> Option:
        placed = placed_role(self._request, self._arrangement.devices, role, placement)
        assert placed is not None
        work = RoleWork(self._request, placed, self._shape, self._tasks[role])
        return Option(role, placement, work)


def _can_run(placement: RolePlacement, model: HeldModel) -> bool:
    """Whether workers can split a role so: a family that can be, whole key heads, whole layers."""
    tensors = (placement.tensor_parallel, placement.generation_tensor_parallel or 1)
    heads = model.shape.kv_heads or 1
    is_cut_by_heads = all(heads % split == 0 for split in tensors)
    has_layers = placement.pipeline_parallel <= model.shape.layers
    degrees = {"tensor_parallel": max(tensors), "pipeline_parallel": placement.pipeline_parallel}
    can_be = unsplittable(model.shape, degrees) is None
    return obstacle(placement) is None and can_be and is_cut_by_heads and has_layers
