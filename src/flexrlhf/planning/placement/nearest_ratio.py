"""The valid ratio nearest to one that cannot be packed, for the message that refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product

Ratio = tuple[Fraction, ...]


def nearest_valid(
    ratios: Sequence[Fraction], is_valid: Callable[[Sequence[Fraction]], bool]
) -> Ratio:
    """Returns the valid vector that changes the shares least.

    The change is the sum of absolute differences. Of several vectors at the same distance the one
    in the simplest fractions is taken, then the one that leaves the first roles as they are.

    Args:
        ratios: in (0, 1].
        is_valid: whether a vector can be packed; all ones can.
    """

    def cost(candidate: Ratio) -> tuple[Fraction, int, Ratio]:
        differences = [abs(new - old) for new, old in zip(candidate, ratios, strict=True)]
        return (
            sum(differences, Fraction()),
            sum(share.denominator for share in candidate),
            tuple(differences),
        )

    candidates = {
        candidate
        for blocks in _partitions(tuple(range(len(ratios))))
        for candidate in _filled(ratios, blocks)
        if is_valid(candidate)
    }
    return min(candidates, key=cost)


def _partitions(items: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Yields every way to divide items into sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in _partitions(rest):
        yield [(first,), *smaller]
        for position, block in enumerate(smaller):
            yield [*smaller[:position], (first, *block), *smaller[position + 1 :]]


def _filled(ratios: Sequence[Fraction], blocks: Sequence[tuple[int, ...]]) -> Iterator[Ratio]:
    """Yields vectors in which each block sums to 1 and no share moves against the others."""
    options = [list(_filled_block([ratios[i] for i in block])) for block in blocks]
    for chosen in product(*options):
        filled = dict(
            pair
            for block, shares in zip(blocks, chosen, strict=True)
            for pair in zip(block, shares, strict=True)
        )
        yield tuple(filled[i] for i in range(len(ratios)))


def _filled_block(shares: Sequence[Fraction]) -> Iterator[Ratio]:
    """Yields a block with what it lacks given to one member, or spread evenly over all."""
    lack = 1 - sum(shares, Fraction())
    even = tuple(share + lack / len(shares) for share in shares)
    single = (
        tuple(share + lack * (i == j) for j, share in enumerate(shares)) for i in range(len(shares))
    )
    for candidate in (even, *single):
        if all(0 < share <= 1 for share in candidate):
            yield candidate
