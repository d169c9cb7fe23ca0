"""What the page says of many numbers, and how it writes tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LEVEL: Final = 0.03
"""Differences below this are none: published runs of one setting differ by as much."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 90th percentile and largest of some numbers."""

    median: float
    most: float
    largest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Returns the spread of at least one number; None of none."""
        held = sorted(values)
        if not held:
            return None
        return cls(statistics.median(held), held[math.ceil(0.9 * len(held)) - 1], held[-1])


def percent(value: float | None) -> str:
    """Returns a part as whole percent, a dash where there is none."""
    return "-" if value is None else f"{100 * value:.0f} %"


def spread_cells(values: Iterable[float]) -> list[str]:
    """Returns three cells: median, 90th percentile, largest."""
    found = Spread.of(values)
    if found is None:
        return ["-", "-", "-"]
    return [percent(found.median), percent(found.most), percent(found.largest)]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(str, row))} |" for row in lines] + [""]


def listed(numbers: Iterable[int]) -> str:
    """Returns numbers with commas, `none` for none."""
    return ", ".join(map(str, numbers)) or "none"
