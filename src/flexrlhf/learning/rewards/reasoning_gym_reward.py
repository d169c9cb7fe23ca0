"""The reward `reasoning_gym`: the score that a task gives to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flexrlhf.core.plugins import require_package
from flexrlhf.learning.data.child_process import ChildDied, ChildProcess
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.rewards.protocol import missing_column


class ReasoningGymReward:
    """The task's own score, from 0 to 1, of what stands between answer tags, or else of all.

    An answer that the scorer cannot read, or that takes longer than the deadline, counts 0.

    Args:
        weight: factor in the total.
        deadline_s: seconds for one answer.

    Raises:
        EngineMissing: reasoning-gym is not installed.
    """

    name = "reasoning_gym"

    def __init__(self, *, weight: float = 1.0, deadline_s: float = 5.0) -> None:
        require_package("reasoning_gym", needed_by="The reward 'reasoning_gym'")
        self.weight = weight
        self._child = ChildProcess("flexrlhf.learning.rewards.reasoning_gym_check", str(deadline_s))

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Returns one score per sample.

        Raises:
            DataError: a row does not come from a reasoning-gym task.
        """
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float:
        columns = sample.prompt.columns
        metadata = columns.get("metadata")
        if not isinstance(metadata, Mapping) or "source_dataset" not in metadata:
            raise missing_column(
                "The reward 'reasoning_gym'", "'metadata' with source_dataset", sample
            )
        entry: dict[str, Any] = {"answer": columns.get("answer"), "metadata": metadata}
        task, options = metadata["source_dataset"], columns.get("task_options") or {}
        try:
            return self._child.ask((task, options, entry, sample.text))
        except ChildDied:
            return 0.0
