"""Pairs of a data set with what the frozen reference says of them, on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from torch import Tensor, nn

from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.scoring.passes import score_logprobs
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.item_source import GivenItems, RowDraw, counts_of
from flexrlhf.runtime.measurements import Measurements

REFERENCE_FIELD: Final = "reference_logprobs"

PairLogprobs = tuple[Tensor, Tensor]
"""Of each token of the chosen and of the rejected sequence, zero outside the answers."""


@dataclass(frozen=True, slots=True)
class PairScorer:
    """Says how likely a model takes the answers of pairs to be."""

    max_tokens: int
    """Token budget of a chunk."""
    context: Callable[[], AbstractContextManager[Any]]
    """Makes the context that passes run in; the reference runs as the trained policy does."""

    def logprobs(
        self, model: nn.Module | ParallelModel, pairs: Sequence[PreferencePair]
    ) -> list[PairLogprobs]:
        """Returns the log-probs of each pair's tokens; replicas in lockstep call it together."""
        answers = [answer for pair in pairs for answer in pair.answers]
        with self.context():
            found = score_logprobs(model, answers, temperature=1.0, max_tokens=self.max_tokens)
        return list(zip(found[0::2], found[1::2], strict=True))


def with_reference(
    pairs: Sequence[PreferencePair], logprobs: Sequence[PairLogprobs]
) -> list[PreferencePair]:
    """Returns the pairs with what the reference says of their tokens."""
    return [
        replace(pair, fields={REFERENCE_FIELD: found})
        for pair, found in zip(pairs, logprobs, strict=True)
    ]


@dataclass
class ScoredPairs(GivenItems):
    """Draws the pairs of an iteration and lets the reference score them once, for all epochs."""

    draw: RowDraw
    held_out_rows: Sequence[PreferencePair]
    reference: nn.Module
    scorer: PairScorer
    items: Sequence[PreferencePair] = field(default=(), init=False)

    def items_of(self, iteration: int) -> Sequence[PreferencePair]:  # noqa: ARG002 - but one
        """Returns the pairs of the iteration in progress, once they are scored."""
        return self.items

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        match task:
            case Task(operation="prepare"):
                self.items = self.draw.of(task.iteration)
                return counts_of(self.items)
            case Task(operation="logprobs", role="reference"):
                self.items = self._scored(self.items)
                return {}
            case _:
                raise ValueError(f"No work on pairs: {task}.")

    @cached_property
    def held_out(self) -> list[PreferencePair]:
        """The held-out pairs, scored; a frozen model says the same of them every time."""
        return self._scored(self.held_out_rows)

    def _scored(self, pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
        return with_reference(pairs, self.scorer.logprobs(self.reference, pairs))
