"""How long the tasks of one placed role take."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

from flexrlhf.core.names import SHADOWS
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import all_gather_s
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import (
    CommunicationGroup,
    data_group,
    mean_device,
    pipeline_link,
    replica_group,
    shard_group,
    slowest_device,
    tensor_group,
)
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.passes import Passes, Seconds
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.graph import Operation
from flexrlhf.planning.workflow.shape import IterationShape

_WEIGHTS_SHARDED: Final = 3
"""The ZeRO stage that shards weights."""


class RoleSeconds:
    """Times of one role; what memory leaves it to choose is given with each question.

    Args:
        cluster: the machines.
        placed: the role; its own micro-batch does not count here.
        shape: into which pieces an iteration is cut.
        workload: samples and lengths.
        calibration: constants of the class of hardware and software.
    """

    def __init__(
        self,
        cluster: Cluster,
        placed: PlacedRole,
        shape: IterationShape,
        workload: Workload,
        calibration: Calibration,
    ) -> None:
        self._cluster = cluster
        self._placed = placed
        self._shape = shape
        self._workload = workload
        self._calibration = calibration

    def of(self, operation: Operation, *, micro_batch: int, concurrent: float) -> Seconds:
        """Returns how long one task of the role takes.

        Args:
            operation: what the task does.
            micro_batch: samples of a pass on each replica.
            concurrent: sequences that one replica of the engine decodes at once, at most.
        """
        if operation == "generate":
            return self._generation(concurrent)
        if operation == "forward_backward":
            return self._training(micro_batch)
        if operation == "forward":
            return self._mismatched(micro_batch)
        if operation == "optimizer_step":
            return self._passes.optimizer_step()
        generated = self._workload.generated if operation == "rewards" else 1.0
        return self._scoring(micro_batch, self._rollout_samples * generated)

    def generation_parts(self, concurrent: float) -> tuple[Seconds, ...]:
        """Returns how long each part of a rollout takes, where answers stream out of the engine."""
        placed, workload, decoder = self._placed, self._workload, self._decoder
        samples = self._rollout_samples * workload.generated / placed.engine_replicas
        parts = self._shape.rollout_micro_batches
        part_s = _part_s(
            decoder,
            (samples, parts),
            min(concurrent, decoder.engine.most_samples or samples),
            (workload.prompt, workload.response),
            float(workload.samples_per_prompt if decoder.engine.shares_prompts else 1),
        )
        gather_s = self._gather_s() / parts
        return tuple(Seconds(seconds / workload.speedup, gather_s) for seconds in part_s)

    def _generation(self, concurrent: float) -> Seconds:
        """Of one part of a rollout: weights into the engine's layout, prompts, then all tokens."""
        if self.streams:
            parts = self.generation_parts(concurrent)
            mean_s = sum(part.compute_s for part in parts) / len(parts)
            return Seconds(mean_s, parts[0].communication_s)
        placed, workload, decoder = self._placed, self._workload, self._decoder
        samples = self._rollout_samples * workload.generated / placed.engine_replicas
        shared = workload.samples_per_prompt if decoder.engine.shares_prompts else 1
        limit = min(concurrent, decoder.engine.most_samples or samples)
        rounds = 1.0 if decoder.engine.continuous else max(1.0, samples / limit)
        prefill_s = rounds * decoder.prefill_s(samples / shared / rounds, workload.prompt)
        decode_s = _decode_s(
            decoder, samples, limit, (workload.prompt, workload.response), placed.engine_replicas
        )
        gather_s = self._gather_s() / self._shape.rollout_micro_batches
        return Seconds((prefill_s + decode_s) / workload.speedup, gather_s)

    @property
    def streams(self) -> bool:
        """Whether the parts of a rollout follow from the order in which answers end."""
        return self._placed.streams and self._shape.rollout_micro_batches > 1

    def _scoring(self, micro_batch: int, samples: float) -> Seconds:
        """Of `samples` sequences."""
        uneven = self._workload.imbalance(samples, self._placed.layout.data)
        return self._passes.forward(
            uneven * samples * self._workload.mean_tokens,
            self._workload.mean_context,
            self._num_passes(samples, micro_batch),
        )

    def _mismatched(self, micro_batch: int) -> Seconds:
        """Of one of the graph's micro-batches, each of its prompts with another's answer."""
        return self._scoring(micro_batch, self._trained_samples)

    def _training(self, micro_batch: int) -> Seconds:
        """Of one of the graph's micro-batches, in as many passes as memory asks for."""
        samples = self._trained_samples
        uneven = self._workload.imbalance(samples, self._placed.layout.data)
        return self._passes.forward_backward(
            uneven * samples * self._workload.mean_tokens,
            self._workload.mean_context,
            self._num_passes(samples, micro_batch),
        )

    def install_s(self) -> float:
        """Returns the seconds in which new weights are written into memory of the engine's own."""
        placed = self._placed
        is_shadow = placed.role in SHADOWS.values()
        if not is_shadow and (placed.engine is None or not placed.engine.has_own_copy):
            return 0.0
        parts = placed.engine.tensor if placed.engine else placed.layout.tensor
        stages = placed.engine_pipeline if placed.engine else placed.layout.pipeline
        written = placed.model.weight_bytes / parts / stages
        return 2 * written / self._passes.device.memory_bandwidth

    @cached_property
    def _passes(self) -> Passes:
        cluster, devices, layout = self._cluster, self._placed.devices, self._placed.layout
        return Passes(
            self._placed.model,
            layout,
            self._device,
            self._calibration,
            tensor_group(cluster, devices, layout),
            shard_group(cluster, devices, layout),
            replica_group(cluster, devices, layout),
        )

    @cached_property
    def _decoder(self) -> Decoder:
        placed = self._placed
        assert placed.engine is not None
        split = Layout(tensor=placed.engine.tensor, data=placed.engine_replicas)
        return Decoder(
            placed.model,
            placed.engine,
            self._device,
            self._calibration,
            tensor_group(self._cluster, placed.devices, split),
            self._shards(),
            placed.engine_pipeline,
            pipeline_link(self._cluster, placed.devices, placed.layout),
        )

    @property
    def _rollout_samples(self) -> float:
        return self._workload.num_samples / self._shape.rollout_micro_batches

    @property
    def _trained_samples(self) -> float:
        per_step = self._workload.num_samples / self._shape.mini_batches
        return per_step / self._shape.micro_batches_per_mini_batch

    @cached_property
    def _device(self) -> DeviceType:
        """By which all others are reckoned: the slowest, which they wait for, or their mean."""
        placed = self._placed
        counted = mean_device if placed.is_shared_by_speed else slowest_device
        return counted(self._cluster, placed.devices, placed.model.compute_dtype)

    def _num_passes(self, samples: float, micro_batch: int) -> float:
        owners = max(1.0, self._placed.layout.data / self._workload.sequence_split)
        return float(max(1, -(-samples / owners // micro_batch)))

    def _gather_s(self) -> float:
        """Weights brought into the engine's layout before a round of generation."""
        placed = self._placed
        engine, layout = placed.engine, placed.layout
        if engine is None or engine.mode == "per_token":
            return 0.0
        if layout.zero_stage < _WEIGHTS_SHARDED:
            is_resharded = engine.has_own_copy and layout.weight_parts > 1
            return self._resharded_s() if is_resharded else 0.0
        own = placed.model.gathered_bytes / engine.tensor / placed.engine_pipeline
        return all_gather_s(own, self._passes.shard_group, self._calibration)

    def _resharded_s(self) -> float:
        """Every weight of a split model on its way past all of the engine's devices.

        Source: verl's and NeMo-RL's exports to an engine on the same devices: tensor after tensor
        is gathered over pipeline stages and tensor-parallel parts, and each engine keeps its own.
        """
        placed, calibration = self._placed, self._calibration
        everyone = data_group(self._cluster, placed.devices, Layout(data=len(placed.devices)))
        gathered_s = all_gather_s(placed.model.weight_bytes, everyone, calibration)
        link = everyone.between or everyone.inside
        is_inside = everyone.between is None
        reached = calibration.link_efficiency if is_inside else calibration.network_efficiency
        return gathered_s * link.rate(reached) / link.rate(calibration.sync_efficiency)

    def _shards(self) -> CommunicationGroup:
        placed = self._placed
        if placed.layout.zero_stage < 3:
            return data_group(self._cluster, placed.devices, Layout())
        return shard_group(self._cluster, placed.devices, placed.layout)


@lru_cache(maxsize=1 << 16)
def _decode_s(
    decoder: Decoder, samples: float, limit: float, lengths: tuple[Lengths, Lengths], replicas: int
) -> float:
    """Kept, since a search asks the same of every way to shard weights that rest elsewhere."""
    return decoder.decode_s(samples, limit, *lengths, replicas=replicas)


@lru_cache(maxsize=1 << 12)
def _part_s(
    decoder: Decoder,
    cut: tuple[float, int],
    limit: float,
    lengths: tuple[Lengths, Lengths],
    per_prompt: float,
) -> tuple[float, ...]:
    return decoder.part_s(*cut, limit, *lengths, per_prompt=per_prompt)
