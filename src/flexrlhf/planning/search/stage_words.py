"""What the stages of an iteration take, in the words of an explanation."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.digits import three_digits
from flexrlhf.core.timeline import Share
from flexrlhf.planning.placement.prediction import Prediction

STAGE_WORDS: Final[dict[Share, str]] = {
    "generate": "generation",
    "score": "scoring",
    "train": "training",
    "sync": "weight sync",
}
UNSEEN: Final = 0.005
"""Part of an iteration below which a difference is none in the digits that are shown."""


def stages_taken(predicted: Prediction) -> str:
    """Says what each stage takes; they may overlap, and so add up to more than an iteration."""
    taken = ((words, predicted.stage_s.get(stage, 0.0)) for stage, words in STAGE_WORDS.items())
    least_s = UNSEEN * predicted.iteration_s
    return ", ".join(
        f"{words} {three_digits(seconds)} s" for words, seconds in taken if seconds >= least_s
    )
