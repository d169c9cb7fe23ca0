"""Cutting an iteration's items into mini-batches and micro-batches.

Mini-batches are cut by item id from a seeded permutation, never by arrival, so that every placement
trains on the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexrlhf.learning.data.collation import (
    Item,
    item_tokens,
    num_sequences,
    num_trainable_tokens,
)
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.training.objectives import GlobalCounts
from flexrlhf.runtime.micro_batch_limit import MicroBatchLimit
from flexrlhf.runtime.shares import balanced_shares


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The items of one optimiser step, divided between replicas and packed into micro-batches."""

    replicas: tuple[tuple[tuple[Item, ...], ...], ...]
    """Micro-batches of each replica."""
    counts: GlobalCounts

    @property
    def num_passes(self) -> int:
        """Micro-batches of the replica that has most."""
        return max(map(len, self.replicas))

    def micro_batch(self, index: int, replica: int = 0) -> tuple[Item, ...]:
        """Returns the items of a replica's micro-batch; none where the packing needed fewer."""
        parts = self.replicas[replica]
        return parts[index] if index < len(parts) else ()


def permutation(num_items: int, *, seed: int, iteration: int, epoch: int) -> list[int]:
    """Returns a seeded order of items, the same for the same four numbers."""
    order = SeededOrder(num_items, (seed + 1 << 32) + iteration)
    return order.take(epoch * num_items, num_items)


def cut_mini_batch(
    items: Sequence[Item],
    order: Sequence[int],
    index: int,
    num_mini_batches: int,
    *,
    limit: MicroBatchLimit,
    max_answer_tokens: int,
    num_replicas: int = 1,
    speeds: Sequence[float] = (),
) -> MiniBatch:
    """Returns mini-batch `index` of `num_mini_batches` equal ones.

    Args:
        items: all items of the iteration, in the order of their ids.
        order: a permutation of their positions.
        index: which mini-batch, from 0.
        num_mini_batches: how many the iteration is cut into.
        limit: the size of a micro-batch.
        max_answer_tokens: the longest answer allowed.
        num_replicas: that share the step; each gets about as many tokens.
        speeds: of the replicas, where each gets as many tokens as it is fast.
    """
    size = len(items) // num_mini_batches
    chosen = [items[position] for position in order[index * size : (index + 1) * size]]
    lengths = [item_tokens(item) for item in chosen]
    return MiniBatch(
        replicas=tuple(
            tuple(
                tuple(chosen[share[i]] for i in positions)
                for positions in limit.cut([lengths[i] for i in share])
            )
            for share in balanced_shares(lengths, num_replicas, speeds)
        ),
        counts=GlobalCounts(
            num_tokens=sum(num_trainable_tokens(item) for item in chosen),
            num_sequences=sum(num_sequences(item) for item in chosen),
            max_tokens=max_answer_tokens,
        ),
    )
