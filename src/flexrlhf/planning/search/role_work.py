"""What one role in its place takes, depending on the memory that others leave it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.placement.device_memory import (
    MEMORY_STAGES,
    DeviceMemory,
    largest_fitting,
)
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.search.bounds import Times
from flexrlhf.planning.search.pass_sizes import best_pass, most_at_once
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.workflow.graph import Operation
from flexrlhf.planning.workflow.role_seconds import RoleSeconds
from flexrlhf.planning.workflow.shape import IterationShape


class RoleWork:
    """The tasks of one role in an iteration.

    Args:
        request: what is placed.
        placed: the role; a micro-batch of 0 is left open.
        shape: into which pieces an iteration is cut.
        tasks: of the role, by stage and operation, and how many there are.
    """

    def __init__(
        self,
        request: PlanRequest,
        placed: PlacedRole,
        shape: IterationShape,
        tasks: Mapping[tuple[Stage, Operation], int],
    ) -> None:
        workload, calibration = request.workload, request.calibration
        self._request = request
        self._placed = placed
        self._tasks = tasks
        self._most_at_once = (
            most_at_once(request, placed, shape.rollout_micro_batches) if placed.engine else 0
        )
        self._seconds = RoleSeconds(request.cluster, placed, shape, workload, calibration)
        self._memory = DeviceMemory(
            request.cluster, [placed], workload, calibration, generation_samples=0.0
        )
        self._bytes: dict[tuple[Stage, int], float] = {}
        self._times: dict[tuple[int, int], tuple[float, Times]] = {}
        self.resting_bytes = max(kind.resting_bytes for kind in self._memory.kinds)

    @property
    def least_bytes(self) -> float:
        """What rests, and what one sample adds in the stage where it adds most."""
        return self.resting_bytes + max(self.bytes(stage, 1) for stage in MEMORY_STAGES)

    @property
    def most_bytes(self) -> float:
        """What rests, and what the largest passes that make sense add where they add most."""
        size = best_pass(self._request, self._placed, lambda _, most: most)
        sizes = size, max(1, self._most_at_once)
        added = (self.bytes(stage, sizes[stage == "generate"]) for stage in MEMORY_STAGES)
        return self.resting_bytes + max(added)

    def times(self, available_bytes: float) -> Times:
        """Returns the seconds per stage with so many bytes beside what rests.

        They are those of the largest passes that fit; infinite where not even one sample does.
        """
        placed = self._placed

        def largest(stage: Stage, most: int) -> int:
            return largest_fitting(lambda size: self.bytes(stage, size) <= available_bytes, most)

        at_once = largest("generate", self._most_at_once) if placed.engine else 0
        sizes = best_pass(self._request, placed, largest), max(1, at_once)
        if sizes not in self._times:
            needed = max(self.bytes(stage, sizes[stage == "generate"]) for stage in MEMORY_STAGES)
            self._times[sizes] = needed, self.seconds(*sizes)
        needed, times = self._times[sizes]
        return times if needed <= available_bytes else dict.fromkeys(times, math.inf)

    def seconds(self, micro_batch: int, at_once: int) -> Times:
        """Returns the seconds per stage with these samples per pass and decoded at once."""
        found: dict[tuple[Role, Stage], float] = {}
        for (stage, operation), count in self._tasks.items():
            taken = self._seconds.of(operation, micro_batch=micro_batch, concurrent=float(at_once))
            once_s = taken.compute_s + self._request.calibration.task_s + taken.communication_s
            key = self._placed.role, stage
            found[key] = found.get(key, 0.0) + count * once_s
        if installed_s := self._seconds.install_s():
            found[self._placed.role, "sync"] = installed_s
        return found

    def bytes(self, stage: Stage, samples: int) -> float:
        """Returns what `samples` per replica add on a device; 0 in a stage without the role."""
        key = stage, samples
        if key not in self._bytes:
            parts = self._memory.working_bytes(self._placed, stage, samples=samples)
            self._bytes[key] = sum((parts or {}).values())
        return self._bytes[key]
