"""Shares of devices, as exact fractions: shown to users, and turned into devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

_FINITE_DECIMALS = 4


def shown(share: Fraction) -> str:
    """Returns a share as a user would write it: 0.25, 1, 1/3."""
    scaled = share * 10**_FINITE_DECIMALS
    return f"{float(share):g}" if scaled.denominator == 1 else str(share)


def vector(shares: Iterable[Fraction]) -> str:
    """Returns shares as a list in YAML: `[1, 1, 0.5, 0.5]`."""
    return f"[{', '.join(shown(share) for share in shares)}]"


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Divides `total` in proportion to shares: whole parts first, the rest by largest remainder.

    Equal remainders are served in the order of the shares.

    Args:
        shares: that sum to 1.
        total: what is divided.
    """
    exact_parts = [share * total for share in shares]
    parts = [int(part) for part in exact_parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - exact_parts[i])
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def consecutive(devices: Sequence[int], counts: Iterable[int]) -> list[tuple[int, ...]]:
    """Returns as many devices for each count, one range after the other."""
    ranges: list[tuple[int, ...]] = []
    start = 0
    for count in counts:
        ranges.append(tuple(devices[start : start + count]))
        start += count
    return ranges
