"""What one placement took, beside what was predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from placement_jobs import Case

from flexrlhf.planning.placement.plan import Plan

STAGES: Final = ("generate", "score", "train", "sync")
_WARM_UP: Final = 1
"""Iterations at the start that do not count: moments are allocated, connections opened."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one placement."""

    job: str
    name: str
    workers: int
    strategy: str
    max_staleness: int
    measured_s: float
    """Median of the iterations that count."""
    fastest_s: float
    slowest_s: float
    predicted_s: float
    stages: Mapping[str, tuple[float, float]]
    """Measured and predicted."""
    others_share: float
    """Part of the machine's processor time that other programs used meanwhile."""
    driver_share: float
    """Part of an iteration in which no worker does anything."""
    exposed_share: float
    """What moves between workers and is not hidden behind work, by the time of scoring."""
    runs: int = 1
    """Times are medians of the medians of so many runs, fastest and slowest those of all."""

    @property
    def error(self) -> float:
        """Predicted by measured, less one."""
        return self.predicted_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self) | {"error": self.error}

    def line(self) -> str:
        """Returns one line for whoever waits."""
        return (
            f"{self.job} on {self.workers}, {self.name}: {self.measured_s:.3f} s measured, "
            f"{self.predicted_s:.3f} s predicted ({self.error:+.0%}), "
            f"others used {self.others_share:.0%} of the machine"
        )


def median_row(
    case: Case, plan: Plan, metrics: Sequence[Mapping[str, float]], others_share: float
) -> Measured:
    """Returns the medians of a run's iterations.

    Args:
        case: what was run.
        plan: with its prediction.
        metrics: a row per iteration.
        others_share: part of the machine's processor time that others used meanwhile.
    """
    predicted = plan.predicted
    assert predicted is not None, "every placement fits"
    counted = [row for row in metrics if row["iteration"] > _WARM_UP]
    times = [row["time/iteration_s"] for row in counted]
    stages = {
        stage: (
            statistics.median(row.get(f"time/{stage}_s", 0.0) for row in counted),
            predicted.stage_s.get(stage, 0.0),
        )
        for stage in STAGES
    }
    return Measured(
        case.job,
        case.name,
        case.workers,
        plan.strategy,
        case.max_staleness,
        statistics.median(times),
        min(times),
        max(times),
        predicted.iteration_s,
        stages,
        others_share,
        statistics.median(row["time/driver_s"] / row["time/iteration_s"] for row in counted),
        statistics.median(_exposed(row) for row in counted),
    )


def together(rows: Sequence[Measured]) -> Measured:
    """Returns one row for several runs of one placement.

    Args:
        rows: of these runs, at least one.
    """

    def median(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rows))

    stages = {
        stage: (statistics.median(row.stages[stage][0] for row in rows), predicted)
        for stage, (_, predicted) in rows[0].stages.items()
    }
    return replace(
        rows[0],
        measured_s=median(lambda row: row.measured_s),
        fastest_s=min(row.fastest_s for row in rows),
        slowest_s=max(row.slowest_s for row in rows),
        stages=stages,
        others_share=median(lambda row: row.others_share),
        driver_share=median(lambda row: row.driver_share),
        exposed_share=median(lambda row: row.exposed_share),
        runs=sum(row.runs for row in rows),
    )


def _exposed(row: Mapping[str, float]) -> float:
    return row.get("share/communication", 0.0) / row.get("share/score", math.inf)
