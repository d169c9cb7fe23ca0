"""The size of a micro-batch: a token budget, or a fixed number of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexrlhf.learning.data.collation import num_micro_batches
from flexrlhf.learning.data.experience import pack_by_tokens


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """So many tokens, padding included."""

    max_tokens: int

    def bound(self, num_items: int, longest: int) -> int:
        """Returns the most micro-batches that `num_items` items can need."""
        return num_micro_batches(num_items, longest=longest, max_tokens=self.max_tokens)

    def tokens(self, longest: int) -> int:  # noqa: ARG002 - the other limit needs it
        """Returns the most tokens of a micro-batch, padding included."""
        return self.max_tokens

    def cut(self, lengths: Sequence[int]) -> list[list[int]]:
        """Returns indices into `lengths`, micro-batch by micro-batch, longest first."""
        return pack_by_tokens(lengths, max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True)
class ItemLimit:
    """So many items, of whatever length."""

    max_items: int

    def bound(self, num_items: int, longest: int) -> int:  # noqa: ARG002 - the other limit needs it
        """Returns the micro-batches that `num_items` items make."""
        return -(-num_items // self.max_items)

    def tokens(self, longest: int) -> int:
        """Returns the most tokens of a micro-batch whose items have at most `longest`."""
        return self.max_items * longest

    def cut(self, lengths: Sequence[int]) -> list[list[int]]:
        """Returns indices into `lengths`, micro-batch by micro-batch, longest first."""
        order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
        return [order[i : i + self.max_items] for i in range(0, len(order), self.max_items)]


MicroBatchLimit = TokenLimit | ItemLimit
