"""The reward `math`: is the answer mathematically equal to the row's."""

from __future__ import annotations

from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.rewards.child_reward import ChildReward
from flexrlhf.learning.rewards.protocol import missing_column, reference_answer


class MathReward(ChildReward):
    r"""1 for an answer equal to the row's, 0 for any other, as math-verify judges it.

    The answer is taken from `<answer>...</answer>`, `\boxed{...}`, or the last expression of the
    text. Where the row's answer is a number, one that leaves something to calculate, such as
    `61 + 19` for 80, is wrong. A row whose own answer is nothing mathematical gets nan. An answer
    that takes longer than the deadline counts as wrong.
    """

    name = "math"
    package = "math_verify"
    program = "flexrlhf.learning.rewards.maths_check"

    def _question(self, prompt: Prompt) -> tuple[str]:
        """Returns the row's own answer."""
        right = reference_answer(prompt.columns)
        if right is None:
            raise missing_column("The reward 'math'", "'answer' or 'solution'", prompt)
        return (str(right),)
