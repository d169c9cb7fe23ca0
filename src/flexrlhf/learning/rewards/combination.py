"""Several rewards as one: a weighted sum, and what each part gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flexrlhf.core.errors import DataError


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
        DataError: there are no parts, or to some sample none applies.
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
    totals = [
        math.fsum(parts[name][0] * score for name, score in scores.items()) for scores in breakdown
    ]
    return totals, breakdown
