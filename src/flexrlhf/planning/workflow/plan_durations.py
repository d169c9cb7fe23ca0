"""How long the tasks and transfers of one plan take, by the costs of its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import all_gather_s
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import (
    CommunicationGroup,
    data_group,
    pipeline_link,
    replica_group,
    shard_group,
    slowest_device,
    tensor_group,
)
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.passes import Passes, Seconds
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.device_memory import DeviceMemory
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import SHADOWS, DeviceGroup
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
        self._passes = {placed.role: self._passes_of(placed) for placed in roles}
        self._decoders = {
            placed.role: self._decoder_of(placed) for placed in roles if placed.engine is not None
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
            num_bytes = self._rollout_samples * self._workload.mean_tokens * _EXPERIENCE_BYTES
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

    @property
    def _rollout_samples(self) -> float:
        return self._workload.num_samples / self._shape.rollout_micro_batches

    def _seconds(self, task: Task) -> Seconds:
        placed = self._roles.get(task.role) if task.role else None
        if task.operation == "generate" and placed is not None:
            return self._generation(placed)
        if task.operation in ("logprobs", "values", "rewards"):
            return self._scoring(placed) if placed is not None else Seconds(0.0)
        if task.operation == "forward_backward" and placed is not None:
            return self._training(placed)
        if task.operation == "optimizer_step" and placed is not None:
            return self._passes[placed.role].optimizer_step()
        if task.operation == "install":
            return self._install(self._groups[task.group])
        return Seconds(0.0)

    def _generation(self, placed: PlacedRole) -> Seconds:
        """Weights into the engine's layout, prompts, then all tokens."""
        workload, decoder = self._workload, self._decoders[placed.role]
        samples = self._rollout_samples / placed.engine_replicas
        shared = workload.samples_per_prompt if decoder.engine.shares_prompts else 1
        limit = min(self._concurrent, decoder.engine.most_samples or samples)
        rounds = 1.0 if decoder.engine.continuous else max(1.0, samples / limit)
        prefill_s = rounds * decoder.prefill_s(samples / shared / rounds, workload.prompt)
        decode_s = decoder.decode_s(
            samples,
            limit,
            workload.prompt,
            workload.response,
            replicas=placed.engine_replicas,
        )
        gather_s = self._gather_s(placed) / self._shape.rollout_micro_batches
        return Seconds((prefill_s + decode_s) / workload.speedup, gather_s)

    def _scoring(self, placed: PlacedRole) -> Seconds:
        samples = self._rollout_samples
        uneven = self._workload.imbalance(samples, placed.layout.data)
        return self._passes[placed.role].forward(
            uneven * samples * self._workload.mean_tokens,
            self._workload.mean_context,
            self._num_passes(placed, samples),
        )

    def _training(self, placed: PlacedRole) -> Seconds:
        """One of the graph's micro-batches, in as many passes as memory asks for."""
        samples = self._workload.num_samples / self._shape.mini_batches
        samples /= self._shape.micro_batches_per_mini_batch
        uneven = self._workload.imbalance(samples, placed.layout.data)
        return self._passes[placed.role].forward_backward(
            uneven * samples * self._workload.mean_tokens,
            self._workload.mean_context,
            self._num_passes(placed, samples),
        )

    def _num_passes(self, placed: PlacedRole, samples: float) -> float:
        per_replica = samples / placed.layout.data
        return float(max(1, -(-per_replica // placed.micro_batch_samples)))

    def _gather_s(self, placed: PlacedRole) -> float:
        """Sharded weights gathered once before a round of generation."""
        layout = placed.layout
        if placed.engine is None or placed.engine.mode == "per_token" or layout.zero_stage < 3:
            return 0.0
        own = placed.model.weight_bytes / placed.engine.tensor / placed.engine_pipeline
        group = self._passes[placed.role].shard_group
        return all_gather_s(own, group, self._calibration)

    def _install(self, group: DeviceGroup) -> Seconds:
        """New weights into the engine's own memory."""
        seconds = 0.0
        for role in group.roles:
            placed = self._roles.get(role)
            if placed is not None and (placed.engine is not None or role in SHADOWS.values()):
                parts = placed.engine.tensor if placed.engine else placed.layout.tensor
                device = self._passes[role].device
                stages = placed.engine_pipeline if placed.engine else placed.layout.pipeline
                written = placed.model.weight_bytes / parts / stages
                is_copied = role in SHADOWS.values() or (
                    placed.engine is not None and placed.engine.has_own_copy
                )
                seconds += 2 * written / device.memory_bandwidth if is_copied else 0.0
        return Seconds(seconds)

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

    def _passes_of(self, placed: PlacedRole) -> Passes:
        cluster, devices, layout = self._cluster, placed.devices, placed.layout
        return Passes(
            placed.model,
            layout,
            self._slowest(placed),
            self._calibration,
            tensor_group(cluster, devices, layout),
            shard_group(cluster, devices, layout),
            replica_group(cluster, devices, layout),
        )

    def _decoder_of(self, placed: PlacedRole) -> Decoder:
        assert placed.engine is not None
        split = Layout(tensor=placed.engine.tensor, data=placed.engine_replicas)
        return Decoder(
            placed.model,
            placed.engine,
            self._slowest(placed),
            self._calibration,
            tensor_group(self._cluster, placed.devices, split),
            self._shards(placed),
            placed.engine_pipeline,
            pipeline_link(self._cluster, placed.devices, placed.layout),
        )

    def _shards(self, placed: PlacedRole) -> CommunicationGroup:
        if placed.layout.zero_stage < 3:
            return data_group(self._cluster, placed.devices, Layout())
        return shard_group(self._cluster, placed.devices, placed.layout)

    def _slowest(self, placed: PlacedRole) -> DeviceType:
        return slowest_device(self._cluster, placed.devices, placed.model.compute_dtype)

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
