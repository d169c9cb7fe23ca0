"""The part of each named weight that one process holds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from flexrlhf.core.errors import ShapeError
from flexrlhf.core.shard_layout import Box


@dataclass(frozen=True, slots=True)
class Shard:
    """One process's part of a named weight; `tensor` is the live one, not a copy."""

    box: Box
    shape: tuple[int, ...]
    """Of the whole weight."""
    tensor: Tensor
    """Of `box.shape`."""
    tied: tuple[str, ...] = ()
    """Further names of the same tensor."""

    def __post_init__(self) -> None:
        if tuple(self.tensor.shape) != self.box.shape or not self._fits():
            raise ShapeError(
                f"A tensor of shape {tuple(self.tensor.shape)} stands for the part from "
                f"{self.box.start} to {self.box.stop} of a weight of shape {self.shape}.",
                "The part lies inside the weight and is as large as the tensor.",
                "Correct the layout of the shards.",
            )

    def _fits(self) -> bool:
        return len(self.shape) == len(self.box.stop) and all(
            stop <= length for stop, length in zip(self.box.stop, self.shape, strict=True)
        )


def whole_shards(module: nn.Module) -> dict[str, Shard]:
    """Returns every parameter and persistent buffer of an unsharded module.

    Tied tensors come once, under their first name. Names are those of the state dict.
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor.detach()
    return {
        first: Shard(Box.whole(tuple(tensor.shape)), tuple(tensor.shape), tensor, tuple(others))
        for (first, *others), tensor in zip(names.values(), tensors.values(), strict=True)
    }
