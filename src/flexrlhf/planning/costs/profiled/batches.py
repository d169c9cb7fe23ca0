"""How the sequences of an iteration are cut into passes and waves, as a run cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexrlhf.planning.costs.lengths import Lengths


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """Tokens of one sequence."""

    prompt: float
    response: float
    """What is generated, or what the loss counts of a given sequence."""

    @property
    def tokens(self) -> float:
        """All of them."""
        return self.prompt + self.response


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

    @property
    def tokens(self) -> float:
        """Padding included."""
        return self.items * self.longest


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
    return [Bin(len(b), b[0].tokens, sum(s.response for s in b)) for b in bins]


def likely_sequences(count: int, prompt: Lengths, response: Lengths) -> list[SequenceLength]:
    """Returns `count` sequences whose lengths spread as the two distributions say.

    Prompts are taken evenly from the shortest to the longest, responses in another order, as if
    the one said nothing about the other.
    """
    return [
        SequenceLength(prompt.at((number + 0.5) / count), length)
        for number, length in enumerate(response.scattered(count))
    ]
