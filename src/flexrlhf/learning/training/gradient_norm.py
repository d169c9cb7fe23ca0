"""The norm of a gradient whose parts lie in several processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist  # noqa: TID251  the parts' squares are summed here
from torch import Tensor

from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.weight_parts import WeightPart


def global_norm(
    gradients: Iterable[tuple[WeightPart, Tensor]], mesh: RoleMesh, *, is_split_by_replica: bool
) -> float:
    """Returns the L2 norm over the whole model, the same number in every process.

    What several processes hold counts once.

    Args:
        gradients: of this process's parts.
        mesh: the role's processes.
        is_split_by_replica: whether the replicas of a block hold different parts.
    """
    squares = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    for part, gradient in gradients:
        if part.is_at_both_ends and mesh.is_last_stage:
            continue
        # Squares of small float32 gradients would not be held by float32.
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64).to(mesh.device)
        squares[int(part.is_split_by_tensor)] += norm.square()
    if is_split_by_replica and mesh.degrees.block > 1:
        dist.all_reduce(squares, group=mesh.shard_group)
    if mesh.degrees.tensor > 1:
        if mesh.tensor_rank > 0:
            squares[0] = 0.0  # whole weights: the first process's word holds for all
        dist.all_reduce(squares, group=mesh.tensor_group)
    if mesh.degrees.pipeline > 1:
        dist.all_reduce(squares, group=mesh.stage_group)
    return squares.sum().sqrt().item()
