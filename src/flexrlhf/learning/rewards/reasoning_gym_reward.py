"""The reward `reasoning_gym`: the score that a task gives to an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.rewards.child_reward import ChildReward
from flexrlhf.learning.rewards.protocol import missing_column


class ReasoningGymReward(ChildReward):
    """The task's own score, from 0 to 1, of what stands between answer tags, or else of all.

    An answer that the scorer cannot read, or that takes longer than the deadline, counts 0.
    """

    name = "reasoning_gym"
    package = "reasoning_gym"
    program = "flexrlhf.learning.rewards.reasoning_gym_check"

    def _question(self, prompt: Prompt) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        """Returns the task, its options, and its entry."""
        columns = prompt.columns
        metadata = columns.get("metadata")
        if not isinstance(metadata, Mapping) or "source_dataset" not in metadata:
            raise missing_column(
                "The reward 'reasoning_gym'", "'metadata' with source_dataset", prompt
            )
        entry = {"answer": columns.get("answer"), "metadata": metadata}
        return metadata["source_dataset"], columns.get("task_options") or {}, entry
