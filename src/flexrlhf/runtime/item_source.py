"""Where the items of an iteration come from: answers of the policy, or rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flexrlhf.learning.data.collation import Item, num_tokens
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.measurements import Measurement, Measurements


class ItemSource(Protocol):
    """Carries out all tasks of an iteration up to the barrier before training."""

    def items_of(self, iteration: int) -> Sequence[Item]:
        """Returns what an iteration trains on, in order of ids, once its barrier has passed."""
        ...

    @property
    def samples(self) -> list[Sample]:
        """The answers of the iteration in progress, in id order; empty where none are made."""
        ...

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        ...

    def take_weights(self, version: int) -> None:
        """The weights that this source reads are now of `version`."""
        ...

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold of it, as JSON values."""
        ...

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what `state` returns.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowDraw:
    """Says which rows of a data set an iteration trains on; every worker finds the same ones."""

    rows: Sequence[Any]
    order: SeededOrder
    per_iteration: int

    def of(self, iteration: int) -> list[Any]:
        """Returns the rows of an iteration."""
        first = iteration * self.per_iteration
        return [self.rows[i] for i in self.order.take(first, self.per_iteration)]


class GivenItems:
    """What sources of given rows have in common: they answer nothing and remember nothing."""

    @property
    def samples(self) -> list[Sample]:
        """None: nothing is generated."""
        return []

    def take_weights(self, version: int) -> None:
        """Rows, and what frozen roles say of them, depend on no version."""

    def state(self) -> dict[str, Any]:
        """Nothing: the iteration's number alone says which rows come next."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores nothing."""


class RowSource(GivenItems):
    """Rows of a data set that are trained on as they are.

    Args:
        draw: gives those of an iteration.
    """

    def __init__(self, draw: RowDraw) -> None:
        self._draw = draw
        self._items: Sequence[Item] = ()

    def items_of(self, iteration: int) -> Sequence[Item]:  # noqa: ARG002 - there is but one
        """Returns the rows of the iteration in progress."""
        return self._items

    def run(self, task: Task) -> Measurements:
        """Draws the rows of an iteration."""
        if task.operation != "prepare":
            raise ValueError(f"Rows are drawn, not more: {task}.")
        self._items = self._draw.of(task.iteration)
        return counts_of(self._items)


def counts_of(items: Sequence[Item]) -> Measurements:
    """Counts items and the tokens that the loop handled, padding left out."""
    return {
        "samples": Measurement(len(items)),
        "tokens": Measurement(sum(num_tokens(item) for item in items)),
    }
