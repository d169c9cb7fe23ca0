"""One metric over the iterations of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

Metrics = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A metric at the iterations that have it, as finite numbers."""

    key: str
    iterations: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def first(self) -> float:
        """The value at the first iteration that has it."""
        return self.values[0]

    @property
    def last(self) -> float:
        """The value at the last iteration that has it."""
        return self.values[-1]


def series(metrics: Metrics, key: str, *, scale: float = 1.0) -> Series | None:
    """Returns the metric `key` times `scale`; None where no iteration has it."""
    points = [
        (int(line["iteration"]), line[key] * scale)
        for line in metrics
        if key in line and math.isfinite(line[key])
    ]
    if not points:
        return None
    iterations, values = zip(*points, strict=True)
    return Series(key, iterations, values)


def keys_under(metrics: Metrics, prefix: str, *, without: Iterable[str] = ()) -> list[str]:
    """Returns the keys that begin with `prefix`, in the order of their first appearance."""
    excluded = set(without)
    found = {key: None for line in metrics for key in line if key.startswith(prefix)}
    return [key for key in found if key not in excluded]


def evaluation_keys(metrics: Metrics) -> list[str]:
    """Returns the keys under `eval/`, without a part that is the whole evaluation reward."""
    keys = keys_under(metrics, "eval/")
    parts = [key for key in keys if key.startswith("eval/reward_")]
    return [key for key in keys if key not in parts] if len(parts) == 1 else keys


def grouped_mean(line: Series, size: int) -> Series:
    """Returns one point per `size` iterations: their mean, at the first of them."""
    starts = range(0, len(line.values), size)
    return Series(
        line.key,
        tuple(line.iterations[start] for start in starts),
        tuple(fmean(line.values[start : start + size]) for start in starts),
    )


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Returns the mean of up to `window` values around each, fewer at the ends."""
    reach = window // 2
    return [
        fmean(values[max(0, centre - reach) : centre + reach + 1]) for centre in range(len(values))
    ]
