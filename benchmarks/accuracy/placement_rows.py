"""What one placement took, beside what was predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


def _exposed(row: Mapping[str, float]) -> float:
    return row.get("share/communication", 0.0) / row.get("share/score", math.inf)
