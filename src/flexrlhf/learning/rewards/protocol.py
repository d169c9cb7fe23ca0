"""What every part of the reward offers, and where it finds a row's reference answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.experience import Prompt, Sample

ANSWER_COLUMNS: Final = ("ground_truth", "answer", "solution", "label")
"""Columns in which data sets keep the right answer; the first that a row has counts."""


class Reward(Protocol):
    """One part of the reward."""

    @property
    def name(self) -> str:
        """Names the part in metrics: `reward/<name>`."""
        ...

    @property
    def weight(self) -> float:
        """Factor of the part in the total."""
        ...

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Looks whether answers to these prompts can be scored.

        Raises:
            DataError: a column is missing.
        """
        ...

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Returns one score per sample, nan where the part does not apply to it."""
        ...


def reference_answer(columns: Mapping[str, Any]) -> Any:
    """Returns the right answer that a row holds, or None when it has no such column."""
    for name in ANSWER_COLUMNS:
        if columns.get(name) is not None:
            return columns[name]
    return None


def place(sample: Sample) -> str:
    """Returns how error messages name a sample."""
    return f"row {sample.prompt.index} (sample {sample.sample_id})"


def missing_column(needed_by: str, wanted: str, prompt: Prompt) -> DataError:
    """Returns the error for a column that a reward needs and a row lacks."""
    known = ", ".join(prompt.columns) or "none"
    return DataError(
        f"{needed_by} needs column {wanted}, which row {prompt.index} lacks.",
        f"Its columns besides the prompt are: {known}.",
        "Add or rename the column, or choose another reward.",
    )
