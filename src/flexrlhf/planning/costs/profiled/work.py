"""What one iteration of a run in one process has to get through."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.planning.costs.profiled.batches import (
    Bin,
    PassLimit,
    SequenceLength,
    cut,
    mini_batch_of,
    part_of,
)
from flexrlhf.planning.costs.speculation import Speculation


@dataclass(frozen=True, slots=True)
class RunWork:
    """The sequences of an iteration, and the limits by which they are cut."""

    sequences: tuple[SequenceLength, ...]
    """Of answers; of rows or pairs where nothing is generated."""
    limit: PassLimit
    """Of scoring and training passes."""
    samples_per_prompt: int = 1
    rows_per_item: int = 1
    """Two where an item is a pair."""
    max_sequences: int | None = None
    """Answers that are generated at one time; None: all."""
    most_new_tokens: int = 0
    """Longest answer that is allowed."""
    generated: float = 1.0
    """Answers generated and rewarded for each that is trained on."""
    speculation: Speculation | None = None

    def scored(self, part: int, parts: int) -> list[Bin]:
        """Returns the scoring passes over one of `parts` generation micro-batches."""
        return cut(self.part(part, parts), self.limit)

    def trained(self, mini_batch: int, mini_batches: int) -> list[Bin]:
        """Returns the training passes over one of `mini_batches` mini-batches."""
        return cut(self.mini_batch(mini_batch, mini_batches), self.limit)

    def part(self, part: int, parts: int) -> list[SequenceLength]:
        """Returns the sequences of one of `parts` generation micro-batches."""
        return part_of(self.sequences, part, parts)

    def mini_batch(self, mini_batch: int, mini_batches: int) -> list[SequenceLength]:
        """Returns the sequences of one of `mini_batches` mini-batches."""
        return mini_batch_of(self.sequences, mini_batch, mini_batches)
