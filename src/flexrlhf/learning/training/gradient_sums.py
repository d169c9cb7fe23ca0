"""Gradients of a role's replicas added up, and sharded weights put together, a bucket at a time.

The order of buckets and sums is the same in every step and in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
import torch.distributed as dist  # noqa: TID251  gradients are summed here
from torch import Tensor

from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.weight_parts import WeightPart, share

_BUCKET_BYTES: Final = 64 * 2**20
"""Sent at a time: far above what a message costs by itself, far below a model."""


def agree_on_gradients(parts: Sequence[WeightPart], mesh: RoleMesh) -> list[bool]:
    """Returns which parts have a gradient anywhere; a step leaves the others alone."""
    found = torch.tensor(
        [part.gradient is not None for part in parts], dtype=torch.uint8, device=mesh.device
    )
    for group in _groups(mesh):
        dist.all_reduce(found, dist.ReduceOp.MAX, group)
    at_both_ends = torch.tensor([part.is_at_both_ends for part in parts], device=mesh.device)
    if at_both_ends.any():  # in both stages, or in neither
        found_at_ends = found[at_both_ends]
        dist.all_reduce(found_at_ends, dist.ReduceOp.MAX, mesh.ends_group)
        found[at_both_ends] = found_at_ends
    return found.bool().tolist()


def summed_gradients(parts: Sequence[WeightPart], mesh: RoleMesh) -> list[Tensor]:
    """Takes the parts' gradients and returns their sums over the replicas that share each part.

    What is split inside blocks FSDP has summed there already.

    Args:
        parts: weights that have a gradient in some replica; a missing one is zero.
        mesh: the role's processes.
    """
    sums: list[Tensor] = []
    for bucket in _buckets(parts):
        groups = _groups(mesh, across_blocks_only=bucket[0].is_split_by_replica)
        gradients = [_taken(part) for part in bucket]
        if groups:
            flat = _flat(gradients)
            for group in groups:
                dist.all_reduce(flat, group=group)
            gradients = _cut(flat, gradients)
        sums += gradients
    return sums


def scattered_gradients(parts: Sequence[WeightPart], mesh: RoleMesh) -> list[Tensor]:
    """As `summed_gradients`, but of each sum only the rows whose moments this replica keeps."""
    sums: list[Tensor] = []
    for bucket in _buckets(parts):
        gradients = [_taken(part) for part in bucket]
        for shard in range(mesh.degrees.block):
            rows = [_rows(gradient, mesh, shard) for gradient in gradients]
            flat = _flat(rows)
            dist.reduce(flat, group=mesh.shard_group, group_dst=shard)
            if shard == mesh.shard_index:
                if _has_blocks(mesh):
                    dist.all_reduce(flat, group=mesh.block_group)
                sums += _cut(flat, rows)
    return sums


def sum_at_ends(parts: Sequence[WeightPart], sums: Sequence[Tensor], mesh: RoleMesh) -> None:
    """Adds up, in place, what the first and the last stage found for weights that both hold.

    Args:
        parts: weights that have a gradient.
        sums: of each over the replicas.
        mesh: the role's processes.
    """
    for part, gradient in zip(parts, sums, strict=True):
        if part.is_at_both_ends and gradient.numel():
            dist.all_reduce(gradient, group=mesh.ends_group)


def broadcast_rows(parts: Sequence[WeightPart], mesh: RoleMesh) -> None:
    """Gives every replica of a block the rows of the weights that the others have updated."""
    for bucket in _buckets(parts):
        for shard in range(mesh.degrees.block):
            rows = [_rows(part.tensor, mesh, shard) for part in bucket]
            flat = _flat(rows)
            dist.broadcast(flat, group=mesh.shard_group, group_src=shard)
            if shard != mesh.shard_index:
                for weight, new in zip(rows, _cut(flat, rows), strict=True):
                    weight.copy_(new)


def _buckets(parts: Sequence[WeightPart]) -> Iterator[list[WeightPart]]:
    """Yields neighbours of one type that are sent together."""
    bucket: list[WeightPart] = []
    room = _BUCKET_BYTES
    for part in parts:
        size = part.tensor.nbytes
        if bucket and (size > room or part.tensor.dtype != bucket[0].tensor.dtype):
            yield bucket
            bucket, room = [], _BUCKET_BYTES
        bucket.append(part)
        room -= size
    if bucket:
        yield bucket


def _taken(part: WeightPart) -> Tensor:
    gradient, part.parameter.grad = part.gradient, None
    return torch.zeros_like(part.tensor) if gradient is None else gradient


def _rows(tensor: Tensor, mesh: RoleMesh, shard: int) -> Tensor:
    return tensor[slice(*share(len(tensor), mesh.degrees.block, shard))]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cuts a flat tensor into pieces of the shapes of `like`."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def _groups(mesh: RoleMesh, *, across_blocks_only: bool = False) -> list[dist.ProcessGroup]:
    """Returns the groups whose sums make one over all replicas."""
    groups = []
    if mesh.degrees.block > 1 and not across_blocks_only:
        groups.append(mesh.shard_group)
    if _has_blocks(mesh):
        groups.append(mesh.block_group)
    return groups


def _has_blocks(mesh: RoleMesh) -> bool:
    return mesh.num_replicas > mesh.degrees.block
