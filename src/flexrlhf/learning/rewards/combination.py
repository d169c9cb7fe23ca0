"""Several rewards as one: a weighted sum, and what each part gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from flexrlhf.core.errors import DataError

_LARGEST: Final = 1e18
"""Squares of larger numbers, as deviations have them, overflow in float32."""


def combine(
    parts: Mapping[str, tuple[float, Sequence[float]]],
) -> tuple[list[float], list[dict[str, float]]]:
    """Returns each sample's total reward and its breakdown.

    total = sum of weight * score over the parts that apply to the sample

    Args:
        parts: weight and scores by name; a score is nan where the part does not apply.

    Returns:
        The totals, and per sample the unweighted scores of the parts that apply.

    Raises:
        DataError: there are no parts, to some sample none applies, or a share of the total is
            beyond what training can compute with.
    """
    if not parts:
        raise DataError(
            "There is no reward.",
            "Training needs a reward model or at least one function.",
            "Set reward.functions or model.reward.",
        )
    names = list(parts)
    breakdown = [
        {name: score for name, score in zip(names, scores, strict=True) if not math.isnan(score)}
        for scores in zip(*(scores for _, scores in parts.values()), strict=True)
    ]
    for position, scores in enumerate(breakdown):
        if not scores:
            raise DataError(
                f"No reward applies to answer {position} of the batch: {', '.join(names)}.",
                "At least one part must give every answer a number.",
                "Add a reward that applies to all rows, or leave such rows out of the data.",
            )
    totals = [_total(scores, parts, position) for position, scores in enumerate(breakdown)]
    return totals, breakdown


def _total(
    scores: Mapping[str, float], parts: Mapping[str, tuple[float, Sequence[float]]], position: int
) -> float:
    weighted = {name: parts[name][0] * score for name, score in scores.items()}
    if any(abs(share) > _LARGEST for share in weighted.values()):
        raise DataError(
            f"The reward of answer {position} of the batch is out of range: "
            + ", ".join(f"{share:g} by {name}" for name, share in weighted.items())
            + ".",
            f"Rewards are trained on in float32: at most {_LARGEST:g} in size, better around 1.",
            "Lower the weight, or scale what the reward function returns.",
        )
    return math.fsum(weighted.values())
