"""A role in its place: its model, its devices, and how it is split over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flexrlhf.core.names import Role
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.placement.plan import RolePlacement


@dataclass(frozen=True, slots=True)
class PlacedRole:
    """Everything that the costs of a role depend on."""

    role: Role
    model: HeldModel
    devices: tuple[int, ...]
    layout: Layout
    engine: Engine | None = None
    """None where the role does not generate."""
    scores: bool = True
    """Whether it looks at given tokens; a trained role whose shadow does so does not."""
    is_apart: bool = False
    """Whether no other role shares a device with it."""
    is_shared_by_speed: bool = False
    """Whether faster replicas get more of the work; else all wait for the slowest."""
    micro_batch_samples: int = 1
    """Samples of a forward and backward pass on each replica, or on those that share a sequence."""

    @property
    def engine_replicas(self) -> int:
        """Copies of the model that generate next to each other."""
        if self.engine is None:
            return 0
        return max(1, len(self.devices) // (self.engine.tensor * self.engine_pipeline))

    @property
    def engine_pipeline(self) -> int:
        """Pipeline stages of a replica of the engine."""
        return 1 if self.engine is None else self.engine.pipeline_of(self.layout)

    @property
    def streams(self) -> bool:
        """Whether answers go on being generated while those that ended are scored."""
        return self.is_apart and self.engine is not None and self.engine.continuous

    def with_micro_batch(self, samples: int) -> PlacedRole:
        """Returns the same place with another micro-batch."""
        return replace(self, micro_batch_samples=samples)


def layout_of(placement: RolePlacement) -> Layout:
    """Returns the degrees of a placement as the costs take them."""
    shards = placement.shard_devices or placement.tensor_parallel * placement.data_parallel
    return Layout(
        tensor=placement.tensor_parallel,
        pipeline=placement.pipeline_parallel,
        data=placement.data_parallel,
        zero_stage=placement.zero_stage,
        shard=max(1, shards // placement.tensor_parallel),
        offload=placement.offload,
        expert=placement.expert_parallel or 1,
    )


def engine_of(placement: RolePlacement, base: Engine) -> Engine:
    """Returns how a generating role generates.

    Args:
        placement: of the role; without a word on generation it keeps the layout of its weights,
            gathered once where ZeRO shards them.
        base: what the engine's software does.
    """
    mode = placement.generation or "gathered"
    tensor = placement.generation_tensor_parallel or placement.tensor_parallel
    return replace(base, mode=mode, tensor=tensor)
