"""How one model is split over its devices, as the costs see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism of one role; they multiply to the number of its devices."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero_stage: int = 0
    """1 shards optimiser state, 2 gradients too, 3 weights too."""
    shard: int = 1
    """Replicas over which ZeRO shards: `data`, or fewer where it stays inside a node."""
    offload: bool = False
    """Optimiser state rests in host memory."""

    @property
    def num_devices(self) -> int:
        """Devices of the role."""
        return self.tensor * self.pipeline * self.data

    @property
    def weight_parts(self) -> int:
        """Parts into which the weights at rest are cut."""
        return self.tensor * self.pipeline * (self.shard if self.zero_stage >= 3 else 1)

    @property
    def gradient_parts(self) -> int:
        """Parts into which the gradients are cut."""
        return self.tensor * self.pipeline * (self.shard if self.zero_stage >= 2 else 1)

    @property
    def optimizer_parts(self) -> int:
        """Parts into which the optimiser state is cut."""
        return self.tensor * self.pipeline * (self.shard if self.zero_stage >= 1 else 1)
