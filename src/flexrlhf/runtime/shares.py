"""Work divided between replicas: about as many tokens for each, or as many as each is fast."""

from __future__ import annotations

import math
from collections.abc import Sequence


def balanced_shares(
    lengths: Sequence[int], num_shares: int, speeds: Sequence[float] = ()
) -> list[list[int]]:
    """Returns indices into `lengths`, share by share; each index once.

    The longest goes first, each to the share that would have done it first and still has room: no
    share has more than its part of the items, rounded up. The same lengths and speeds always give
    the same shares.

    Args:
        lengths: tokens of each item.
        num_shares: at least 1; some are empty where there are fewer items.
        speeds: of each share, above 0, in any unit; empty where all are equal.
    """
    speeds = speeds or (1.0,) * num_shares
    room = rooms(len(lengths), speeds)
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    tokens = [0] * num_shares
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        share = min(
            (s for s in range(num_shares) if len(shares[s]) < room[s]),
            key=lambda s: (tokens[s] + length) / speeds[s],
        )
        shares[share].append(index)
        tokens[share] += length
    return [sorted(share) for share in shares]


def rooms(num_items: int, speeds: Sequence[float]) -> list[int]:
    """Returns the most items that each share gets: its part by speed, rounded up."""
    total = math.fsum(speeds)
    # What rounding makes a little larger than a whole number is that number.
    return [math.ceil(num_items * speed / total - 1e-9) for speed in speeds]
