"""Which part of a tensor one process holds: boxes of indices, how they overlap, what is left."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A block of indices of a tensor: `start[d] <= index < stop[d]` in every dimension `d`.

    A tensor without dimensions has one box, `Box((), ())`, of one element.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        ordered = all(0 <= a <= b for a, b in zip(self.start, self.stop, strict=True))
        if not ordered:
            raise ValueError(f"The box from {self.start} to {self.stop} ends before it begins.")

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """Returns the box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length in every dimension."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def num_elements(self) -> int:
        """Elements inside, 0 for an empty box."""
        return math.prod(self.shape)

    def contains(self, other: Box) -> bool:
        """Says whether every index of `other` lies in this box."""
        return other.num_elements == 0 or self.overlap(other) == other

    def overlap(self, other: Box) -> Box | None:
        """Returns what both hold, None where that is nothing.

        Raises:
            ValueError: the boxes are of tensors with unlike numbers of dimensions.
        """
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def minus(self, other: Box) -> list[Box]:
        """Returns boxes that do not touch each other and hold exactly what `other` does not."""
        common = self.overlap(other)
        if common is None:
            return [self] if self.num_elements else []
        rest: list[Box] = []
        start, stop = list(self.start), list(self.stop)
        for dim, (low, high) in enumerate(zip(common.start, common.stop, strict=True)):
            if start[dim] < low:
                rest.append(Box(tuple(start), (*stop[:dim], low, *stop[dim + 1 :])))
            if high < stop[dim]:
                rest.append(Box((*start[:dim], high, *start[dim + 1 :]), tuple(stop)))
            start[dim], stop[dim] = low, high
        return rest

    def pieces(self, max_elements: int) -> list[Box]:
        """Cuts the box into boxes of at most `max_elements`, along its first dimensions.

        Pieces of one row-major tensor are thereby as contiguous as they can be.

        Raises:
            ValueError: `max_elements` is below 1.
        """
        if max_elements < 1:
            raise ValueError(f"A piece has at least one element, not {max_elements}.")
        if self.num_elements <= max_elements:
            return [self] if self.num_elements else []
        dim = next(d for d, length in enumerate(self.shape) if length > 1)
        rows = max(1, max_elements // math.prod(self.shape[dim + 1 :]))
        cut = [
            self._between(dim, at, min(at + rows, self.stop[dim]))
            for at in range(self.start[dim], self.stop[dim], rows)
        ]
        return [piece for slab in cut for piece in slab.pieces(max_elements)]

    def _between(self, dim: int, low: int, high: int) -> Box:
        return Box(
            (*self.start[:dim], low, *self.start[dim + 1 :]),
            (*self.stop[:dim], high, *self.stop[dim + 1 :]),
        )

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Returns where this box lies in the local tensor of `outer`.

        Raises:
            ValueError: it reaches beyond `outer`.
        """
        if not outer.contains(self):
            raise ValueError(f"{self} reaches beyond {outer}.")
        if self.num_elements == 0:
            return tuple(slice(0, length) for length in self.shape)
        return tuple(
            slice(a - origin, b - origin)
            for a, b, origin in zip(self.start, self.stop, outer.start, strict=True)
        )
