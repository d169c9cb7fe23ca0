"""Whether two groups of runs have one mean, by Welch's t interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_CONFIDENCE: Final = 0.95
_PIECES: Final = 100
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two means, with the half-width of its 95 % interval."""

    mean: float
    half_width: float

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds no difference at all."""
        return abs(self.mean) <= self.half_width


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Returns the mean of the first group less that of the second.

    Groups may differ in size and variance. Source: Welch, Biometrika 34 (1947), with the degrees of
    freedom of Satterthwaite, Biometrics Bulletin 2 (1946).

    Args:
        first: one number for each run, at least two.
        second: the same.
    """
    parts = [statistics.variance(group) / len(group) for group in (first, second)]
    mean = statistics.fmean(first) - statistics.fmean(second)
    if not any(parts):
        return Difference(mean, 0.0)
    shares = [part**2 / (len(g) - 1) for part, g in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(shares)
    return Difference(mean, student_quantile(freedom) * math.sqrt(sum(parts)))


def student_quantile(freedom: float) -> float:
    """Returns how many standard errors a 95 % interval reaches to either side.

    Args:
        freedom: degrees of freedom, at least 1 and not always whole.
    """
    low, high = 0.0, 100.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < _CONFIDENCE else (low, middle)
    return (low + high) / 2


def _within(limit: float, freedom: float) -> float:
    """Returns the chance that Student's t lies within +-limit, by Simpson's rule.

    With t = sqrt(freedom) tan a, its density is proportional to cos(a)^(freedom - 1).
    """
    end = math.atan(limit / math.sqrt(freedom))
    step = end / _PIECES
    weights = [1, *([4, 2] * (_PIECES // 2))[:-1], 1]
    total = sum(w * math.cos(i * step) ** (freedom - 1) for i, w in enumerate(weights))
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return 2 * math.exp(scale) / math.sqrt(math.pi) * total * step / 3
