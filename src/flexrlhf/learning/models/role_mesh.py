"""The processes of one role, in the order of its degrees, and the groups they talk in.

A role's ranks stand in a block of shape [blocks, replicas of a block, tensor-parallel ranks]:
consecutive ranks hold the parts of one replica, and ZeRO shards inside a block of replicas.
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
    def size(self) -> int:
        """Processes."""
        return self.tensor * self.data * self.pipeline


class RoleMesh:
    """Where this process stands among those of a role; `create` makes one.

    Args:
        ranks: the role's processes in the world, in their order.
        degrees: how they split the model.
        device_mesh: the same ranks by block, replica of the block and tensor rank.
        group: all of them.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        degrees: ShardDegrees,
        device_mesh: DeviceMesh,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.ranks = ranks
        self.degrees = degrees
        self.group = group
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
            PlanError: the degrees do not make as many processes, or cannot be run.
        """
        if degrees.pipeline > 1:
            raise PlanError(
                f"A role is cut into {degrees.pipeline} pipeline stages.",
                "Runs split a model by replicas and tensors; pipeline stages can be exported only.",
                "Set placement.roles.ROLE.pipeline_parallel=1.",
            )
        if len(set(ranks)) != len(ranks) or len(ranks) != degrees.size:
            raise PlanError(
                f"Processes {list(ranks)} hold a role of tensor {degrees.tensor} x data "
                f"{degrees.data}.",
                f"These degrees need {degrees.size} processes, each once.",
                "Change the role's devices or its degrees.",
            )
        blocks = degrees.data // degrees.block
        mesh = DeviceMesh(
            device_type,
            torch.tensor(list(ranks)).view(blocks, degrees.block, degrees.tensor),
            mesh_dim_names=("blocks", "shards", "tensor"),
        )
        group = dist.new_group(list(ranks))
        is_member = isinstance(group, dist.ProcessGroup)
        return cls(tuple(ranks), degrees, mesh, group if is_member else None)

    @property
    def is_member(self) -> bool:
        """Whether this process holds a part of the role."""
        return self._position is not None

    @property
    def position(self) -> int:
        """This process among those of the role: `replica * tensor + tensor_rank`."""
        assert self._position is not None, "This process is not one of the role's."
        return self._position

    @property
    def replica(self) -> int:
        """Which replica this process is a part of."""
        return self.position // self.degrees.tensor

    @property
    def num_replicas(self) -> int:
        """Replicas of the role."""
        return self.degrees.data

    @property
    def tensor_rank(self) -> int:
        """Which part of the replica this process holds."""
        return self.position % self.degrees.tensor

    @property
    def is_leader(self) -> bool:
        """Whether this process is the first of its replica."""
        return self.tensor_rank == 0

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
        """The processes of this replica."""
        return self._mesh["tensor"]

    @property
    def shard_mesh(self) -> DeviceMesh:
        """The same part in every replica of this block."""
        return self._mesh["shards"]

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        """The processes of this replica."""
        return self._mesh.get_group("tensor")

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


def _present_device(device_type: str) -> torch.device:
    """Returns the device of the calling thread; other threads may have another present one."""
    if device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device_type)
