"""Finds the largest number that fits, where trying one is dear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_STEP: Final = 0.05
"""Part of the expected number to which the largest one is found."""


def bracketed(expected: int, fits: Callable[[int], bool]) -> tuple[int, int]:
    """Returns the largest number that fits and the smallest that does not, a step apart.

    Args:
        expected: where to begin.
        fits: says whether a number does; from some number on none does.
    """
    step = max(1, round(_STEP * expected))
    low, high, reach = 0, 0, step
    if fits(expected):
        low = expected
        while not high:
            low, high = (low + reach, 0) if fits(low + reach) else (low, low + reach)
            reach *= 2
    else:
        high = expected
        while not low and high > 1:
            at = max(1, high - reach)
            low, high = (at, high) if fits(at) else (0, at)
            reach *= 2
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high
