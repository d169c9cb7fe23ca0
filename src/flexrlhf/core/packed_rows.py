"""What is read of a batch whose padding is left out, and whose shared prompts are read once.

The one rule of it: those who run models ask it what to read, those who plan what that takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LARGEST_SHARE: Final = 0.9
"""Of a padded batch's tokens; with more of them packing took up to a tenth longer, tiny models."""
CPU_KEY_BLOCK: Final = 16
"""On a CPU keys come in multiples of it: what is left over torch's kernel takes one by one."""
_CAUSAL_BLOCK: Final = 64
"""Queries that kernels take together: causal attention skips what all of them may not see."""


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Rows whose attention is computed together."""

    rows: tuple[int, ...]
    """Their places in the batch."""
    begin: int
    """Column of the first query; the query at column i sees the keys up to i."""
    ends: tuple[int, ...]
    """Column behind the last query of each."""
    key_block: int
    """What the number of keys is a multiple of."""

    @property
    def end(self) -> int:
        """Column behind the last query of any."""
        return max(self.ends)

    @property
    def num_queries(self) -> int:
        """Of each row, padding included."""
        return self.end - self.begin

    @property
    def num_keys(self) -> int:
        """The same."""
        return whole_blocks(self.end, self.key_block)

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.rows)

    @property
    def num_query_slots(self) -> int:
        """Queries of all rows."""
        return self.num_rows * self.num_queries

    @property
    def num_key_slots(self) -> int:
        """Keys of all rows."""
        return self.num_rows * self.num_keys

    @property
    def pairs(self) -> float:
        """Products of a query and a key that a kernel computes, about."""
        if self.begin:
            return self.num_query_slots * self.num_keys
        seen = min(self.num_keys, (self.num_keys + _CAUSAL_BLOCK) / 2)
        return self.num_query_slots * seen


@dataclass(frozen=True)  # without slots, so that what follows from it stays
class PackedRows:
    """The tokens that are read of some rows, and how attention to them is cut."""

    num_tokens: int
    """Each of a prompt once, however many rows begin with it."""
    parts: tuple[AttentionPart, ...]

    @cached_property
    def num_query_slots(self) -> int:
        """Queries of all parts, their padding included."""
        return sum(part.num_query_slots for part in self.parts)

    @cached_property
    def num_key_slots(self) -> int:
        """Keys of all parts, with the copies of a prompt that are made for its rows."""
        return sum(part.num_key_slots for part in self.parts)

    @cached_property
    def pairs(self) -> float:
        """Products of a query and a key that attention computes."""
        return sum(part.pairs for part in self.parts)


def first_with_same(prompts: Sequence[Hashable | None]) -> list[int]:
    """Returns, for each row, the first one with its prompt; itself where it has none to share."""
    first: dict[Hashable, int] = {}
    return [
        row if prompt is None else first.setdefault(prompt, row)
        for row, prompt in enumerate(prompts)
    ]


def packed_rows(
    lengths: Sequence[int],
    prompt_lengths: Sequence[int],
    owners: Sequence[int],
    *,
    key_block: int,
) -> PackedRows:
    """Returns what is read of rows.

    Args:
        lengths: tokens of each row up to the last that anything is wanted of.
        prompt_lengths: of these, those of its prompt.
        owners: of each row the first with its prompt.
        key_block: what the number of keys of a part is a multiple of.
    """
    own = sum(
        length - (prompt if owner != row else 0)
        for row, (length, prompt, owner) in enumerate(
            zip(lengths, prompt_lengths, owners, strict=True)
        )
    )
    return PackedRows(own, tuple(_parts(lengths, prompt_lengths, owners, key_block)))


def rows_as_they_are(num_rows: int, num_columns: int) -> PackedRows:
    """Returns what is read of rows that stay as they are, with their padding."""
    part = AttentionPart(tuple(range(num_rows)), 0, (num_columns,) * num_rows, 1)
    return PackedRows(num_rows * num_columns, (part,))


def pays(num_tokens: int, num_padded: int) -> bool:
    """Says whether so much is left out that finding tokens and copying them back costs less.

    Args:
        num_tokens: that are read without padding.
        num_padded: of the padded batch.
    """
    return num_tokens <= LARGEST_SHARE * num_padded


def whole_blocks(count: int, block: int) -> int:
    """Returns the least multiple of `block` from `count` on."""
    return -(-count // block) * block


def _parts(
    lengths: Sequence[int], prompts: Sequence[int], owners: Sequence[int], key_block: int
) -> list[AttentionPart]:
    """Returns how attention is cut: all rows as they are, or shared prompts apart from answers."""
    every = range(len(lengths))
    whole = [AttentionPart(tuple(every), 0, tuple(lengths), key_block)]
    begun = [row for row in every if owners[row] == row]
    if len(begun) == len(lengths):
        return whole
    apart = [AttentionPart(tuple(begun), 0, tuple(prompts[row] for row in begun), key_block)]
    for prompt in sorted(set(prompts)):
        rows = [row for row in every if prompts[row] == prompt and lengths[row] > prompt]
        if rows:
            ends = tuple(lengths[row] for row in rows)
            apart.append(AttentionPart(tuple(rows), prompt, ends, key_block))
    return min(whole, apart, key=lambda parts: sum(part.pairs for part in parts))
