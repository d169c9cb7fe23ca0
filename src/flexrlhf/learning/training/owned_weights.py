"""The rows of each weight whose optimiser state this process keeps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.weight_parts import WeightPart, rows_of


class OwnedWeight:
    """Rows of one weight as the optimiser sees them.

    Args:
        part: what this process holds of the weight.
        box: the rows of it that are updated here.
        offload: whether the optimiser works on a copy in host memory.
    """

    def __init__(self, part: WeightPart, box: Box, *, offload: bool) -> None:
        self.part = part
        self.box = box
        rows = self.rows
        self.leaf = nn.Parameter(rows.to("cpu", copy=True) if offload else rows)
        """Shares the weight's memory, unless it is offloaded."""
        self._offload = offload

    @property
    def rows(self) -> Tensor:
        """The live weights."""
        return self.part.tensor[self.box.within(self.part.box)]

    def take_gradient(self, gradient: Tensor) -> None:
        """Hands the summed gradient of the rows to the optimiser."""
        self.leaf.grad = gradient.to(self.leaf.device)

    @torch.no_grad()
    def write_back(self) -> None:
        """Brings an offloaded copy's new values into the model."""
        if self._offload:
            self.rows.copy_(self.leaf)

    @torch.no_grad()
    def read_again(self) -> None:
        """Brings the model's values, after they were loaded, into an offloaded copy."""
        if self._offload:
            self.leaf.copy_(self.rows)


def owned_weights(parts: tuple[WeightPart, ...], mesh: RoleMesh) -> Iterator[OwnedWeight]:
    """Yields what this process updates of each part: under ZeRO-1 its rows, else all of it."""
    degrees = mesh.degrees
    for part in parts:
        box = part.box
        if degrees.zero_stage > 0 and not part.is_split_by_replica:
            box = rows_of(box, degrees.block, mesh.shard_index)
        yield OwnedWeight(part, box, offload=degrees.offload)
