"""Work divided between replicas, so that each gets about as many tokens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced_shares(lengths: Sequence[int], num_shares: int) -> list[list[int]]:
    """Returns indices into `lengths`, share by share; each index once.

    The longest goes first, each to the share with the fewest tokens that still has room: no share
    has more than ceil(items / shares) of them. The same lengths always give the same shares.

    Args:
        lengths: tokens of each item.
        num_shares: at least 1; some are empty where there are fewer items.
    """
    room = -(-len(lengths) // num_shares)
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    heap = [(0, share) for share in range(num_shares)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        tokens, share = heapq.heappop(heap)
        shares[share].append(index)
        if len(shares[share]) < room:
            heapq.heappush(heap, (tokens + lengths[index], share))
    return [sorted(share) for share in shares]
