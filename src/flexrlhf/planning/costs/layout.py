"""How one model is split over its devices, as the costs see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.core.model_families import is_sharded
from flexrlhf.planning.costs.held_model import HeldModel

OPTIMIZER: Final = 1
GRADIENTS: Final = 2
WEIGHTS: Final = 3
"""The ZeRO stages that shard them."""


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
    expert: int = 1
    """Devices of a pipeline stage that divide the routed experts of each layer among them, each
    expert whole; 1: experts are split and sharded as all else is."""

    @property
    def num_devices(self) -> int:
        """Devices of the role."""
        return self.tensor * self.pipeline * self.data

    @property
    def weight_parts(self) -> int:
        """Parts into which the weights at rest are cut, routed experts apart."""
        return self._parts(WEIGHTS)

    @property
    def optimizer_parts(self) -> int:
        """Parts into which the optimiser state is cut, that of routed experts with it."""
        return self._parts(OPTIMIZER)

    def held(self, amount: float, routed_share: float, *, least_stage: int) -> float:
        """Returns what one device holds of weights, gradients or optimiser state.

        Args:
            amount: of a whole model.
            routed_share: the part of it that belongs to routed experts.
            least_stage: the ZeRO stage that shards it.
        """
        if self.expert == 1:
            return amount / self._parts(least_stage)
        experts = self.expert * self.pipeline
        if self.zero_stage >= least_stage:
            experts *= max(1, self.tensor * self.shard // self.expert)
        return amount * ((1 - routed_share) / self._parts(least_stage) + routed_share / experts)

    def _parts(self, least_stage: int) -> int:
        return self.tensor * self.pipeline * (self.shard if self.zero_stage >= least_stage else 1)


def packs(model: HeldModel, layout: Layout) -> bool:
    """Says whether the processes of a role read packed tokens, a shared prompt once.

    They do if each has the layers of its replica whole, and our runtime runs them itself.
    """
    is_cut = layout.tensor > 1 or layout.pipeline > 1
    has_parts = is_sharded(layout.zero_stage, layout.shard, trains=model.is_trained)
    return model.shape.packs and not model.lora_rank and not is_cut and not has_parts
