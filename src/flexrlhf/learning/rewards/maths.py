"""The reward `math`: is the answer mathematically equal to the row's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexrlhf.core.plugins import require_package
from flexrlhf.learning.data.child_process import ChildDied, ChildProcess
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.rewards.protocol import missing_column, reference_answer


class MathReward:
    r"""1 for an answer equal to the row's, 0 for any other, as math-verify judges it.

    The answer is taken from `<answer>...</answer>`, `\boxed{...}`, or the last expression of the
    text. A row whose own answer is nothing mathematical gets nan. An answer that takes longer than
    the deadline counts as wrong.

    Args:
        weight: factor in the total.
        deadline_s: seconds for one answer.

    Raises:
        EngineMissing: math-verify is not installed.
    """

    name = "math"

    def __init__(self, *, weight: float = 1.0, deadline_s: float = 5.0) -> None:
        require_package("math_verify", needed_by="The reward 'math'")
        self.weight = weight
        self._child = ChildProcess("flexrlhf.learning.rewards.maths_check", str(deadline_s))

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Returns 1.0, 0.0 or nan per sample.

        Raises:
            DataError: a row holds no answer.
        """
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float:
        right = reference_answer(sample.prompt.columns)
        if right is None:
            raise missing_column("The reward 'math'", "'answer' or 'solution'", sample)
        try:
            score = self._child.ask((str(right), sample.text))
        except ChildDied:
            return 0.0
        return math.nan if score is None else score
