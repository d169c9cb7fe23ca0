"""The processes of one role, in the order of its degrees, and the groups they talk in.

A role's ranks stand in a block of shape [pipeline stages, blocks, replicas of a block,
tensor-parallel ranks]: consecutive ranks hold the parts of one replica's stage, and ZeRO shards
inside a block of replicas.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist  # noqa: TID251  groups of processes are made here
from torch.distributed.device_mesh import DeviceMesh  # noqa: TID251

from flexrlhf.core.errors import PlanError

_ZERO_STAGES: Final = range(4)
_STAGED_ZERO: Final = 1
"""The largest ZeRO stage of a role that is cut into pipeline stages."""


@dataclass(frozen=True, slots=True)
class ShardDegrees:
    """How one role's model is split over its processes.

    Raises:
        PlanError: a degree is out of range, or the blocks do not divide the replicas.
    """

    tensor: int = 1
    data: int = 1
    """Replicas."""
    pipeline: int = 1
    zero_stage: int = 0
    """0 replicates everything; 1, 2, 3 shard optimiser state, gradients, weights as well."""
    shard_replicas: int | None = None
    """ZeRO shards inside blocks of so many replicas; None: over all of them."""
    offload: bool = False
    """Optimiser state rests in host memory."""

    def __post_init__(self) -> None:
        if min(self.tensor, self.data, self.pipeline) < 1 or self.zero_stage not in _ZERO_STAGES:
            raise PlanError(
                f"A role has the degrees tensor {self.tensor}, data {self.data}, pipeline "
                f"{self.pipeline} and ZeRO stage {self.zero_stage}.",
                "Degrees are at least 1, the stage is 0, 1, 2 or 3.",
                "Correct placement.roles.",
            )
        if self.pipeline > 1 and self.zero_stage > _STAGED_ZERO:
            raise PlanError(
                f"A role is cut into {self.pipeline} pipeline stages and has ZeRO stage "
                f"{self.zero_stage}.",
                "Several micro-batches are under way in a stage, for which its weights and "
                "gradients stay whole: ZeRO stage 0 or 1.",
                "Set placement.roles.ROLE.zero_stage=1, or pipeline_parallel=1.",
            )
        if self.block < 1 or self.data % self.block:
            raise PlanError(
                f"ZeRO shards inside blocks of {self.block} of {self.data} replicas.",
                "Blocks are of one size: it divides the number of replicas.",
                "Change shard_devices of the role, or its devices.",
            )

    @property
    def block(self) -> int:
        """Replicas that a ZeRO shard is one part of."""
        return self.data if self.shard_replicas is None else self.shard_replicas

    @property
    def stage_size(self) -> int:
        """Processes of one pipeline stage."""
        return self.tensor * self.data

    @property
    def size(self) -> int:
        """Processes."""
        return self.tensor * self.data * self.pipeline


class RoleMesh:
    """Where this process stands among those of a role; `create` makes one.

    Args:
        ranks: the role's processes in the world, in their order.
        degrees: how they split the model.
        device_mesh: the same ranks by pipeline stage where there are several, block, replica of
            the block and tensor rank.
        group: all of them.
        ends_group: the first and the last stage of this process's replica and tensor rank.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        degrees: ShardDegrees,
        device_mesh: DeviceMesh,
        group: dist.ProcessGroup | None,
        ends_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.ranks = ranks
        self.degrees = degrees
        self.group = group
        self.ends_group = ends_group
        self._mesh = device_mesh
        self._device = _present_device(device_mesh.device_type)
        rank = dist.get_rank()
        self._position = ranks.index(rank) if rank in ranks else None

    @classmethod
    def create(
        cls, ranks: Sequence[int], degrees: ShardDegrees, *, device_type: str = "cpu"
    ) -> RoleMesh:
        """Makes the groups of a role; every process of the world calls it, in the same order.

        Args:
            ranks: processes of the role; consecutive ones split one replica.
            degrees: how they split the model.
            device_type: `cpu` or `cuda`, where the model lies.

        Raises:
            PlanError: the degrees do not make as many processes.
        """
        if len(set(ranks)) != len(ranks) or len(ranks) != degrees.size:
            raise PlanError(
                f"Processes {list(ranks)} hold a role of tensor {degrees.tensor} x data "
                f"{degrees.data} x pipeline {degrees.pipeline}.",
                f"These degrees need {degrees.size} processes, each once.",
                "Change the role's devices or its degrees.",
            )
        shape = {
            "stages": degrees.pipeline,
            "blocks": degrees.data // degrees.block,
            "shards": degrees.block,
            "tensor": degrees.tensor,
        }
        if degrees.pipeline == 1:  # each dimension makes groups
            del shape["stages"]
        mesh = DeviceMesh(
            device_type,
            torch.tensor(list(ranks)).view(*shape.values()),
            mesh_dim_names=tuple(shape),
        )
        group = dist.new_group(list(ranks))
        if not isinstance(group, dist.ProcessGroup):
            group = None
        return cls(tuple(ranks), degrees, mesh, group, _ends_group(ranks, degrees))

    @property
    def is_member(self) -> bool:
        """Whether this process holds a part of the role."""
        return self._position is not None

    @property
    def position(self) -> int:
        """This process among those of the role."""
        assert self._position is not None, "This process is not one of the role's."
        return self._position

    @property
    def _place(self) -> int:
        """This process among those of its pipeline stage: `replica * tensor + tensor_rank`."""
        return self.position % self.degrees.stage_size

    @property
    def stage(self) -> int:
        """Which pipeline stage of its replica this process holds."""
        return self.position // self.degrees.stage_size

    @property
    def is_last_stage(self) -> bool:
        """Whether the model's output comes from this process."""
        return self.stage == self.degrees.pipeline - 1

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The processes in the world that hold this one's part of each stage, in their order."""
        return self.ranks[self._place :: self.degrees.stage_size]

    @property
    def replica(self) -> int:
        """Which replica this process is a part of."""
        return self._place // self.degrees.tensor

    @property
    def num_replicas(self) -> int:
        """Replicas of the role."""
        return self.degrees.data

    @property
    def tensor_rank(self) -> int:
        """Which part of its stage this process holds."""
        return self._place % self.degrees.tensor

    @property
    def block_index(self) -> int:
        """This process in `block_group`, that is, which block of replicas it is in."""
        return dist.get_rank(self.block_group)

    @property
    def shard_index(self) -> int:
        """This process in `shard_group`, whose ranks are ascending, as torch orders all groups."""
        return dist.get_rank(self.shard_group)

    @property
    def device(self) -> torch.device:
        """Where this process keeps its part."""
        return self._device

    @property
    def tensor_mesh(self) -> DeviceMesh:
        """The processes of this replica's stage."""
        return self._mesh["tensor"]

    @property
    def shard_mesh(self) -> DeviceMesh:
        """The same part in every replica of this block."""
        return self._mesh["shards"]

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        """The processes of this replica's stage."""
        return self._mesh.get_group("tensor")

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """The same part of every stage of this replica; only where there are several."""
        return self._mesh.get_group("stages")

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The same part in every replica of this block."""
        return self._mesh.get_group("shards")

    @property
    def block_group(self) -> dist.ProcessGroup:
        """The same part of the same shard in every block."""
        return self._mesh.get_group("blocks")

    def gather(self, document: Any) -> list[Any]:
        """Returns one small JSON document of every process of the role, in their order.

        It goes through host memory, whatever the model lies on.
        """
        text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in self.ranks]
        dist.all_gather(lengths, torch.tensor([len(text)]), self.group)
        sizes = [int(length) for length in lengths]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = text
        received = [torch.empty_like(padded) for _ in self.ranks]
        dist.all_gather(received, padded, self.group)
        heard = {
            rank: json.loads(bytes(one[:size].tolist()))
            for rank, one, size in zip(sorted(self.ranks), received, sizes, strict=True)
        }
        return [heard[rank] for rank in self.ranks]

    def gather_replicas(self, document: Any) -> list[Any]:
        """Returns the document of every replica, in their order, from where its output comes.

        All processes of the role call it.
        """
        last_stage = self.gather(document)[-self.degrees.stage_size :]
        return last_stage[:: self.degrees.tensor]


def _ends_group(ranks: Sequence[int], degrees: ShardDegrees) -> dist.ProcessGroup | None:
    """Makes a group of the two ends of each pipeline, and returns the one of this process."""
    own: dist.ProcessGroup | None = None
    if degrees.pipeline > 1:
        for first, last in zip(
            ranks[: degrees.stage_size], ranks[-degrees.stage_size :], strict=True
        ):
            group = dist.new_group([first, last])
            own = group if isinstance(group, dist.ProcessGroup) else own
    return own


def _present_device(device_type: str) -> torch.device:
    """Returns the device of the calling thread; other threads may have another present one."""
    if device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device_type)
