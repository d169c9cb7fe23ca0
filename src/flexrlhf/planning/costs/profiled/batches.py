"""How the sequences of an iteration are cut into passes and waves, as a run cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from flexrlhf.core.packed_rows import (
    CPU_KEY_BLOCK,
    PackedRows,
    first_with_same,
    packed_rows,
    pays,
    rows_as_they_are,
    whole_blocks,
)
from flexrlhf.planning.costs.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence as a pass reads it."""

    tokens: int
    prompt_tokens: int
    prompt: int | None = None
    """Number of its prompt, by which rows that share it are known; None: it shares none."""


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """Tokens of one sequence."""

    prompt: float
    response: float
    """What is generated, or what the loss counts of a given sequence."""
    prompt_number: int | None = None
    """Which prompt it is, where several answers follow one; None: nobody else's."""
    pair: tuple[Row, Row] | None = None
    """What a pass reads of it, where it is a pair."""

    @property
    def tokens(self) -> float:
        """All of them."""
        return self.prompt + self.response

    @property
    def rows(self) -> tuple[Row, ...]:
        """What a pass reads of it."""
        return self.pair or (Row(round(self.tokens), round(self.prompt), self.prompt_number),)


@dataclass(frozen=True, slots=True)
class PassLimit:
    """How large a pass may be; one of the two is given."""

    max_tokens: float | None = None
    """Padding included."""
    max_items: int | None = None

    def admits(self, items: int, longest: float) -> bool:
        """Says whether so many items of at most `longest` tokens are one pass."""
        if self.max_items is not None:
            return items <= self.max_items
        return self.max_tokens is None or items * longest <= self.max_tokens


@dataclass(frozen=True, slots=True)
class Bin:
    """What one pass reads."""

    items: int
    longest: float
    """Tokens to which each is padded."""
    responses: float
    """Tokens that the loss counts, in all of them."""
    rows: tuple[Row, ...] = field(default=(), compare=False)
    """The sequences; none: as many as items, all as long and with nothing in common."""

    @property
    def tokens(self) -> float:
        """Padding included."""
        return self.items * self.longest

    def packed(self, *, reads_ends: bool) -> PackedRows | None:
        """Returns what is read of it without padding; None where that leaves out too little.

        Args:
            reads_ends: whether something is wanted at the last tokens, which else only end rows.
        """
        if not self.rows:
            return None
        lengths = self._lengths(reads_ends=reads_ends)
        prompts = [
            min(row.prompt_tokens, length) for row, length in zip(self.rows, lengths, strict=True)
        ]
        owners = first_with_same([row.prompt if row.prompt_tokens else None for row in self.rows])
        found = packed_rows(lengths, prompts, owners, key_block=CPU_KEY_BLOCK)
        longest = max(row.tokens for row in self.rows)
        return found if pays(found.num_tokens, len(self.rows) * longest) else None

    def as_it_is(self, *, reads_ends: bool) -> PackedRows | None:
        """Returns what our own layers read of it with its padding; None where rows are unknown.

        Args:
            reads_ends: as in `packed`.
        """
        if not self.rows:
            return None
        columns = whole_blocks(max(self._lengths(reads_ends=reads_ends)), CPU_KEY_BLOCK)
        return rows_as_they_are(len(self.rows), columns)

    def _lengths(self, *, reads_ends: bool) -> list[int]:
        return [row.tokens - (not reads_ends) for row in self.rows]


def cut(sequences: Sequence[SequenceLength], limit: PassLimit) -> list[Bin]:
    """Returns the passes over `sequences`, longest first, each as full as the limit lets it be.

    Source: `pack_by_tokens`, which cuts the sequences of a run.
    """
    bins: list[list[SequenceLength]] = []
    for sequence in sorted(sequences, key=lambda s: -s.tokens):
        if bins and limit.admits(len(bins[-1]) + 1, bins[-1][0].tokens):
            bins[-1].append(sequence)
        else:
            bins.append([sequence])
    return [
        Bin(
            len(b),
            b[0].tokens,
            sum(s.response for s in b),
            tuple(row for s in b for row in s.rows),
        )
        for b in bins
    ]


def likely_sequences(
    count: int, prompt: Lengths, response: Lengths, per_prompt: int = 1
) -> list[SequenceLength]:
    """Returns `count` sequences whose lengths spread as the two distributions say.

    Prompts are taken evenly from the shortest to the longest, responses in another order, as if
    the one said nothing about the other.

    Args:
        count: of sequences.
        prompt: its tokens.
        response: its tokens.
        per_prompt: answers that follow each prompt, one behind the other.
    """
    prompts = -(-count // per_prompt)
    return [
        SequenceLength(
            prompt.at((number // per_prompt + 0.5) / prompts),
            length,
            number // per_prompt if per_prompt > 1 else None,
        )
        for number, length in enumerate(response.scattered(count))
    ]


def part_of(sequences: Sequence[SequenceLength], part: int, parts: int) -> list[SequenceLength]:
    """Returns the sequences of one of the parts of a rollout, which are of whole prompts."""
    numbers = [
        place if sequence.prompt_number is None else sequence.prompt_number
        for place, sequence in enumerate(sequences)
    ]
    return [s for s, number in zip(sequences, numbers, strict=True) if number % parts == part]


def mini_batch_of(
    sequences: Sequence[SequenceLength], mini_batch: int, mini_batches: int
) -> list[SequenceLength]:
    """Returns the sequences of a mini-batch: from all over, in no order that prompts have.

    Those that share prompts come as chance has it, as in a run, and not one or all of each.
    """
    if all(sequence.prompt_number is None for sequence in sequences):
        return list(sequences[mini_batch::mini_batches])
    order = list(range(len(sequences)))
    Random(0).shuffle(order)
    size = -(-len(order) // mini_batches)
    return [sequences[place] for place in order[mini_batch * size : (mini_batch + 1) * size]]
