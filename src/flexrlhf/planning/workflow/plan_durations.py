"""How long the tasks and transfers of one plan take, by the costs of its roles."""

from __future__ import annotations

from collections.abc import Sequence

from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.passes import Seconds
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.device_memory import DeviceMemory
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.role_seconds import RoleSeconds
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.planning.workflow.transfer_seconds import TransferSeconds


class PlanDurations:
    """Times of one plan.

    Args:
        cluster: the machines.
        roles: the placed roles.
        graph: of any iteration; they are alike.
        shape: into which pieces an iteration is cut.
        workload: samples and lengths.
        memory: of the same placement.
        calibration: constants of the class of hardware and software.
        concurrent: sequences that one replica of the engine decodes at once, at most.
    """

    def __init__(
        self,
        cluster: Cluster,
        roles: Sequence[PlacedRole],
        *,
        graph: Graph,
        shape: IterationShape,
        workload: Workload,
        memory: DeviceMemory,
        calibration: Calibration,
        concurrent: float,
    ) -> None:
        self._roles = {placed.role: placed for placed in roles}
        self._groups = {group.name: group for group in graph.groups}
        self._memory = memory
        self._calibration = calibration
        self._concurrent = concurrent
        self._of = {
            placed.role: RoleSeconds(cluster, placed, shape, workload, calibration)
            for placed in roles
        }
        self._times: dict[tuple[str, Role | None, int | None], TaskTime] = {}
        self._transfers = TransferSeconds(
            cluster,
            graph,
            {placed.role: placed.model for placed in roles},
            takes_buckets=all(p.engine.takes_buckets for p in roles if p.engine is not None),
            shape=shape,
            workload=workload,
            calibration=calibration,
        )
        self.links = self._transfers.links

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` occupies its group.

        Tasks of one operation and role are alike, but for parts that stream out of an engine.
        """
        part = task.micro_batch if task.operation == "generate" else None
        key = (f"{task.operation}/{task.group}", task.role, part)
        if key not in self._times:
            seconds = self._seconds(task)
            peak = self.peak_bytes(task)
            compute_s = seconds.compute_s + self._calibration.task_s
            self._times[key] = TaskTime(compute_s, seconds.communication_s, peak)
        return self._times[key]

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` moves."""
        return self._transfers.of(transfer)

    def _seconds(self, task: Task) -> Seconds:
        if task.operation == "install":
            roles = self._groups[task.group].roles
            return Seconds(sum(self._of[role].install_s() for role in roles if role in self._of))
        if task.role is None or task.role not in self._of:
            return Seconds(0.0)
        seconds = self._of[task.role]
        if task.operation == "generate" and seconds.streams and task.micro_batch is not None:
            return seconds.generation_parts(self._concurrent)[task.micro_batch]
        return seconds.of(
            task.operation,
            micro_batch=self._roles[task.role].micro_batch_samples,
            concurrent=self._concurrent,
        )

    def peak_bytes(self, task: Task) -> int:
        """Returns the bytes of the fullest device of the group while the task's role is at work."""
        stage = "score" if task.stage == "advantage" else task.stage
        roles = self._groups[task.group].roles
        needs = [
            self._memory.need(kind, stage).total
            for kind in self._memory.kinds
            if any(role in kind.roles for role in roles)
        ]
        return int(max(needs, default=0.0))
