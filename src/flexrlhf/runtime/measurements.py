"""Numbers that tasks report, and how those of one iteration join into its metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value with the weight that it has among others of its name."""

    value: float
    weight: float = 1.0
    reduction: Literal["mean", "max"] = "mean"

    @classmethod
    def mean_of(cls, values: Sequence[float]) -> Measurement:
        """Returns the mean of the finite values, weighted by how many there are."""
        finite = [value for value in values if math.isfinite(value)]
        return cls(statistics.fmean(finite) if finite else math.nan, float(len(finite)))


Measurements = dict[str, Measurement]


def mean_and_std(name: str, values: Sequence[float]) -> Measurements:
    """Returns `NAME/mean` and `NAME/std` (sample standard deviation) of a whole batch."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        f"{name}/mean": Measurement(statistics.fmean(values)),
        f"{name}/std": Measurement(spread),
    }


def joined(reports: Iterable[Measurements]) -> dict[str, float]:
    """Returns one number per name: the weighted mean, or the maximum, over all reports."""
    by_name: dict[str, list[Measurement]] = {}
    for report in reports:
        for name, measurement in report.items():
            by_name.setdefault(name, []).append(measurement)
    return {
        name: _reduced(measurements)
        for name, measurements in by_name.items()
        if any(measurement.weight for measurement in measurements)
    }


def _reduced(measurements: Sequence[Measurement]) -> float:
    if measurements[0].reduction == "max":
        return max(measurement.value for measurement in measurements)
    total = sum(measurement.weight for measurement in measurements)
    weighted = (m.value * m.weight for m in measurements if m.weight)
    return math.fsum(weighted) / total
