"""Seconds of forward passes over given tokens, of training, and of the optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import (
    all_gather_s,
    all_reduce_s,
    late_s,
    reduce_scatter_s,
)
from flexrlhf.planning.costs.gathering import gather_weights_s
from flexrlhf.planning.costs.groups import CommunicationGroup
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.layout import Layout

_LAUNCHES: Final = 20
"""Operations per layer and forward pass; a backward pass has twice as many."""
_OPTIMIZER_TRAFFIC: Final = 2 * 12 + 2 + 2
"""Bytes per parameter that AdamW reads and writes: state both ways, gradient in, weight out."""
_HOST_MEMORY_BANDWIDTH: Final = 2.5e10
"""Bytes/s of host memory per device for an offloaded optimiser. Source: 200 GB/s by 8 devices."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of a pass: what computes, and the communication that compute does not hide."""

    compute_s: float
    communication_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """One role on its devices."""

    model: HeldModel
    layout: Layout
    device: DeviceType
    calibration: Calibration
    tensor_group: CommunicationGroup
    shard_group: CommunicationGroup
    replica_group: CommunicationGroup

    def forward(self, tokens: float, context: float, micro_batches: float = 1.0) -> Seconds:
        """Returns the time in which all replicas score `tokens` tokens together.

        Args:
            tokens: of all replicas.
            context: positions that a token attends to, on average.
            micro_batches: passes into which each replica cuts its part.
        """
        products_s = self._products_s(tokens, context, 1.0, self.calibration.forward_efficiency)
        compute_s = max(products_s, self._launches_s(micro_batches))
        gather_s = micro_batches * self._gather_s()
        blocking_s = self._reduces_s(tokens, 2, micro_batches)
        return self._exposed(compute_s, gather_s, blocking_s, micro_batches)

    def forward_backward(self, tokens: float, context: float, micro_batches: float) -> Seconds:
        """Returns the time in which all replicas accumulate the gradient of `tokens` tokens."""
        model = self.model
        factor = (2.0 if model.lora_rank else 3.0) + (1.0 if model.recomputes else 0.0)
        products_s = self._products_s(tokens, context, factor, self.calibration.train_efficiency)
        compute_s = max(products_s, factor * self._launches_s(micro_batches))
        gathers = 3 if model.recomputes else 2
        sharded_s = micro_batches * (gathers * self._gather_s() + self._scatter_s())
        blocking_s = self._reduces_s(tokens, 6 if model.recomputes else 4, micro_batches)
        return self._exposed(compute_s, sharded_s, blocking_s, micro_batches)

    def optimizer_step(self) -> Seconds:
        """Returns the time of an update, the gradients' last reduction and new weights included."""
        held = self.model.trainable_params / self.layout.optimizer_parts
        if self.layout.offload:
            moved = 2 * held * DTYPE_BYTES[self.model.weight_dtype]
            compute_s = moved / self.device.host_bandwidth
            compute_s += held * _OPTIMIZER_TRAFFIC / _HOST_MEMORY_BANDWIDTH
        else:
            bandwidth = self.device.memory_bandwidth * self.calibration.decode_bandwidth
            compute_s = held * _OPTIMIZER_TRAFFIC / bandwidth
        return Seconds(compute_s, self._update_traffic_s())

    def _update_traffic_s(self) -> float:
        layout, calibration = self.layout, self.calibration
        own = self.model.gradient_bytes / (layout.tensor * layout.pipeline)
        across_s = all_reduce_s(own / layout.shard, self.replica_group, calibration)
        if layout.zero_stage == 0:
            return all_reduce_s(own, self.shard_group, calibration) + across_s
        if layout.zero_stage == 1:
            across_s += reduce_scatter_s(own, self.shard_group, calibration)
        if layout.zero_stage < 3:
            across_s += all_gather_s(own, self.shard_group, calibration)
        return across_s

    def _products_s(self, tokens: float, context: float, factor: float, share: float) -> float:
        flops = self.model.shape.forward_flops(
            tokens, context, with_head=self.model.has_vocabulary_head
        )
        speed = self.device.peak_flops(self.model.compute_dtype) * share
        return factor * flops / speed / self.layout.num_devices

    def _launches_s(self, micro_batches: float) -> float:
        """The host launches layer by layer; it runs ahead, so only the slower of the two counts."""
        layers = self.model.shape.layers / self.layout.pipeline
        return micro_batches * layers * _LAUNCHES * self.calibration.launch_s

    def _gather_s(self) -> float:
        """Once through all weights of a replica under ZeRO-3."""
        if self.layout.zero_stage < 3 or self.shard_group.size == 1:
            return 0.0
        parts = self.layout.tensor * self.layout.pipeline
        return gather_weights_s(self.model, self.shard_group, self.calibration, parts=parts)

    def _scatter_s(self) -> float:
        """The gradients of a micro-batch under ZeRO-2 and 3."""
        if self.layout.zero_stage < 2:
            return 0.0
        own = self.model.gradient_bytes / (self.layout.tensor * self.layout.pipeline)
        return reduce_scatter_s(own, self.shard_group, self.calibration)

    def _reduces_s(self, tokens: float, count: int, micro_batches: float) -> float:
        """All-reduces of the hidden states per layer under tensor parallelism."""
        if self.tensor_group.size == 1:
            return 0.0
        width = DTYPE_BYTES[self.model.weight_dtype]
        own = tokens / self.layout.data * self.model.shape.hidden * width
        layers = self.model.shape.layers / self.layout.pipeline
        once = all_reduce_s(own, self.tensor_group, self.calibration)
        return count * layers * (once + micro_batches * late_s(self.tensor_group, self.calibration))

    def _exposed(
        self, compute_s: float, sharded_s: float, blocking_s: float, micro_batches: float
    ) -> Seconds:
        """Sharded traffic hides behind compute in part, that of tensor parallelism not at all.

        A pipeline of p stages needs p - 1 more slots than its m micro-batches.
        """
        slots = (micro_batches + self.layout.pipeline - 1) / max(micro_batches, 1.0)
        hidden_s = self.calibration.overlap * min(compute_s, sharded_s)
        return Seconds(compute_s * slots, sharded_s - hidden_s + blocking_s * slots)
