"""Parts of weights as they are asked for and sent: many of them end to end in one run of bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_bytes import checksum

PREFIX: Final = "weights"
"""First part of the keys under which a process gives weights."""
CATALOGUE_KEY: Final = f"{PREFIX}/catalogue"
PIECES_KEY: Final = f"{PREFIX}/pieces"

_ALIGNMENT: Final = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of one named weight."""

    name: str
    box: Box

    def to_json(self) -> list[Any]:
        """Returns the piece as JSON."""
        return [self.name, list(self.box.start), list(self.box.stop)]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Piece:
        """Reads what `to_json` gave."""
        name, start, stop = row
        return cls(str(name), Box(tuple(start), tuple(stop)))

    def checksum(self, tensor: Tensor) -> int:
        """Returns a checksum of the piece's bytes, of its name and of its place."""
        place = f"{self.name} {self.box.start} {self.box.stop}"
        return checksum(tensor, zlib.crc32(place.encode()))


def combined(checksums: Iterable[int]) -> int:
    """Returns one checksum of many pieces, whatever their order."""
    return sum(checksums) % (1 << 64)


def live_part(shard: Shard, box: Box) -> Tensor:
    """Returns the part of a shard's tensor that holds `box`; writing there writes the shard."""
    return shard.tensor.detach()[box.within(shard.box)]


def packed(parts: Sequence[Tensor]) -> Tensor:
    """Copies tensors from any device into one run of bytes."""
    sizes = [part.nbytes for part in parts]
    data = torch.zeros(_total_bytes(sizes), dtype=torch.uint8)
    for part, at in zip(parts, _places(sizes), strict=True):
        _view(data, at, part.dtype, part.shape).copy_(part)
    return data


def unpacked(data: Tensor, forms: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> list[Tensor]:
    """Returns the tensors in what `packed` made, as parts of it.

    Args:
        data: the run of bytes.
        forms: type and shape of every tensor.

    Raises:
        ValueError: `data` has another length than those need.
    """
    sizes = [dtype.itemsize * Box.whole(shape).num_elements for dtype, shape in forms]
    if data.dtype != torch.uint8 or len(data) != _total_bytes(sizes):
        raise ValueError(f"{len(data)} bytes came for {_total_bytes(sizes)}.")
    return [
        _view(data, at, dtype, shape)
        for at, (dtype, shape) in zip(_places(sizes), forms, strict=True)
    ]


def _view(data: Tensor, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    num_bytes = dtype.itemsize * Box.whole(shape).num_elements
    return data[at : at + num_bytes].view(dtype).view(shape)


def _places(sizes: Sequence[int]) -> list[int]:
    """Returns where each tensor begins, so that tensors of every type are aligned."""
    places, at = [], 0
    for size in sizes:
        places.append(at)
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places


def _total_bytes(sizes: Sequence[int]) -> int:
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
