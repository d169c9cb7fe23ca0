"""How long prompts and responses are: a distribution, since the longest ends a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Final

from flexrlhf.core.errors import ConfigError

_SUREST: Final = 1 - 1e-12
"""The share of sequences beyond which no longer one is looked for."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, without the whole part, lie evenly in every stretch of them."""
NUM_QUANTILES: Final = 32
"""Equally likely lengths by which a distribution is held; enough for 1 % of a sum of steps."""


@dataclass(frozen=True)  # without slots, so that sums that a search asks for often stay
class Lengths:
    """Tokens of a sequence, as equally likely values in ascending order.

    Raises:
        ConfigError: there is no value, one is below 0, or they do not ascend.
    """

    quantiles: tuple[float, ...]
    limit: float | None = None
    """Tokens at which every sequence ends; None: the last of the values."""

    def __post_init__(self) -> None:
        values = (*self.quantiles, *([] if self.limit is None else [self.limit]))
        if not values or values[0] < 0 or any(b < a for a, b in pairwise(values)):
            raise ConfigError(
                f"The lengths {list(values)[:4]}... are no distribution.",
                "At least one, none below 0, in ascending order.",
                "Correct the lengths.",
            )

    @classmethod
    def fixed(cls, tokens: float) -> Lengths:
        """Returns the distribution in which every sequence has `tokens` tokens."""
        return cls((float(tokens),))

    @classmethod
    def skewed(cls, mean: float, longest: float, *, sigma: float = 0.8) -> Lengths:
        """Returns a log-normal distribution cut at `longest` that has the given mean.

        Args:
            mean: tokens on average, after the cut.
            longest: tokens at which generation stops.
            sigma: deviation of the logarithm; 0.8 puts the 99th percentile at about 4.7 times
                the mean, as reasoning models' answers show it.

        Raises:
            ConfigError: the mean is not between 0 and `longest`.
        """
        if not 0 < mean <= longest:
            raise ConfigError(
                f"A mean length of {mean:g} tokens with at most {longest:g}.",
                "The mean is above 0 and at most the longest.",
                "Change one of the two.",
            )
        if mean == longest:
            return cls.fixed(longest)
        normal = NormalDist()
        points = [(i + 0.5) / NUM_QUANTILES for i in range(NUM_QUANTILES)]
        shapes = [math.exp(sigma * normal.inv_cdf(point)) for point in points]
        return cls(tuple(_scaled_to(shapes, mean, longest)), limit=longest)

    @classmethod
    def of_samples(cls, tokens: Sequence[float]) -> Lengths:
        """Returns the distribution of lengths that were seen, in any order."""
        ordered = sorted(float(value) for value in tokens)
        if len(ordered) <= NUM_QUANTILES:
            return cls(tuple(ordered))
        step = len(ordered) / NUM_QUANTILES
        picked = tuple(ordered[int((i + 0.5) * step)] for i in range(NUM_QUANTILES))
        return cls(picked, limit=ordered[-1])

    @cached_property
    def mean(self) -> float:
        """Tokens of a sequence on average."""
        return sum(self.quantiles) / len(self.quantiles)

    @cached_property
    def longest(self) -> float:
        """Tokens of the longest sequence that there may be."""
        return self.quantiles[-1] if self.limit is None else self.limit

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squared length: what attention over whole sequences adds up."""
        return sum(value * value for value in self.quantiles) / len(self.quantiles)

    def at(self, point: float) -> float:
        """Returns the length that a share `point`, from 0 to below 1, of sequences stays below."""
        held = len(self.quantiles)
        return self.quantiles[min(int(point * held), held - 1)]

    def scattered(self, count: int) -> list[float]:
        """Returns `count` lengths in an order in which long and short ones take turns."""
        return [self.at((number + 0.5) * _GOLDEN % 1.0) for number in range(count)]

    def longest_of(self, count: float) -> float:
        """Returns the length that the longest of `count` sequences has in the median case."""
        point = min(0.5 ** (1.0 / max(count, 1.0)), _SUREST)
        held = len(self.quantiles)
        if point * held <= held - 0.5:
            return self.quantiles[min(int(point * held), held - 1)]
        return self._beyond(point)

    def _beyond(self, point: float) -> float:
        """The length that a share `point` does not exceed, past the last of the values.

        The logarithm goes on as it does between the last two, as that of a log-normal would.
        """
        held, last = len(self.quantiles), self.quantiles[-1]
        if held == 1 or self.quantiles[-2] <= 0:
            return last
        score = NormalDist().inv_cdf
        before, at = score(1 - 1.5 / held), score(1 - 0.5 / held)
        slope = math.log(last / self.quantiles[-2]) / (at - before)
        return min(self.longest, last * math.exp(slope * (score(point) - at)))

    def falls(self, count: float) -> tuple[tuple[float, float], ...]:
        """Returns how many of `count` sequences still run, as (steps, running) in turn.

        Sequences longer than `longest_of(count)` are taken to end there: a small batch seldom
        holds the longest.
        """
        cap = self.longest_of(count)
        pieces: list[tuple[float, float]] = []
        begun, share = 0.0, count / len(self.quantiles)
        for ended, value in enumerate(self.quantiles):
            steps = min(value, cap) - begun
            if steps > 0:
                pieces.append((steps, count - ended * share))
                begun = min(value, cap)
        if cap > begun:
            pieces.append((cap - begun, min(1.0, count)))
        return tuple(pieces)


def _scaled_to(shapes: Sequence[float], mean: float, longest: float) -> list[float]:
    """Scales ascending values so that, cut at `longest`, they have the mean `mean`."""
    low, high = 0.0, longest / shapes[0]
    for _ in range(60):
        factor = (low + high) / 2
        found = sum(min(factor * shape, longest) for shape in shapes) / len(shapes)
        low, high = (factor, high) if found < mean else (low, factor)
    return [min(high * shape, longest) for shape in shapes]
