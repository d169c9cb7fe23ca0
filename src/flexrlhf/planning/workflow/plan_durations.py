"""How long the tasks and transfers of one plan take, by the costs of its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.passes import Seconds
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.device_memory import DeviceMemory
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup
from flexrlhf.planning.workflow.role_seconds import RoleSeconds
from flexrlhf.planning.workflow.shape import IterationShape

_EXPERIENCE_BYTES: Final = 36
"""Per token handed over: ids and masks in 8 bytes, values in 2. Source: the authors' released code,
8 x 3 + 2 x 6 bytes per token."""


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
        self._cluster = cluster
        self._roles = {placed.role: placed for placed in roles}
        self._groups = {group.name: group for group in graph.groups}
        self._shape = shape
        self._workload = workload
        self._memory = memory
        self._calibration = calibration
        self._concurrent = concurrent
        self._of = {
            placed.role: RoleSeconds(cluster, placed, shape, workload, calibration)
            for placed in roles
        }
        self._times: dict[tuple[str, Role | None], TaskTime] = {}
        self.links: Mapping[str, float] = _adapters(cluster, calibration.network_efficiency)

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` occupies its group; tasks of one operation and role are alike."""
        key = (f"{task.operation}/{task.group}", task.role)
        if key not in self._times:
            seconds = self._seconds(task)
            peak = self._peak_bytes(task)
            compute_s = seconds.compute_s + self._calibration.task_s
            self._times[key] = TaskTime(compute_s, seconds.communication_s, peak)
        return self._times[key]

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` moves: a pipelined broadcast needs each byte once per node."""
        source = self._nodes(self._groups[transfer.source_group])
        target = self._nodes(self._groups[transfer.target_group])
        calibration = self._calibration
        latency_s = 0.0
        if transfer.kind == "weights":
            share = calibration.network_efficiency / calibration.sync_efficiency
            num_bytes = share * sum(self._roles[role].model.weight_bytes for role in transfer.roles)
            latency_s = calibration.sync_s + self._one_by_one_s(transfer)
        else:
            samples = self._workload.num_samples / self._shape.rollout_micro_batches
            num_bytes = samples * self._workload.mean_tokens * _EXPERIENCE_BYTES
        joined = {node.index for node in source} | {node.index for node in target}
        link = self._cluster.link_between(source[0], target[-1])
        if len(joined) == 1:
            width = min(len(self._groups[transfer.target_group].devices), 8)
            capacity = link.bandwidth * calibration.link_efficiency * width
            return TransferTime(num_bytes, (), latency_s + link.latency_s + num_bytes / capacity)
        names = tuple(f"node{index}" for index in sorted(joined))
        return TransferTime(num_bytes, names, latency_s + link.latency_s)

    def _one_by_one_s(self, transfer: Transfer) -> float:
        """What weights cost besides where an engine takes each tensor on its own."""
        engines = [p.engine for p in self._roles.values() if p.engine is not None]
        if all(engine.takes_buckets for engine in engines):
            return 0.0
        tensors = sum(self._roles[role].model.shape.num_tensors for role in transfer.roles)
        return tensors * self._calibration.tensor_s

    def _seconds(self, task: Task) -> Seconds:
        if task.operation == "install":
            roles = self._groups[task.group].roles
            return Seconds(sum(self._of[role].install_s() for role in roles if role in self._of))
        if task.role is None or task.role not in self._of:
            return Seconds(0.0)
        return self._of[task.role].of(
            task.operation,
            micro_batch=self._roles[task.role].micro_batch_samples,
            concurrent=self._concurrent,
        )

    def _peak_bytes(self, task: Task) -> int:
        """Of the fullest device of the group while the task's role is at work."""
        stage = "score" if task.stage == "advantage" else task.stage
        roles = self._groups[task.group].roles
        needs = [
            self._memory.need(kind, stage).total
            for kind in self._memory.kinds
            if any(role in kind.roles for role in roles)
        ]
        return int(max(needs, default=0.0))

    def _nodes(self, group: DeviceGroup) -> Sequence[Node]:
        return self._cluster.nodes_of(group.devices)


@lru_cache(maxsize=64)
def _adapters(cluster: Cluster, efficiency: float) -> Mapping[str, float]:
    """One shared link per node: all its adapters towards other nodes."""
    nodes = cluster.nodes
    return {
        f"node{node.index}": cluster.link_between(node, nodes[node is nodes[0]]).bandwidth
        * efficiency
        for node in nodes
        if len(nodes) > 1
    }
