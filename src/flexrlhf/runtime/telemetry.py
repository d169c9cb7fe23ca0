"""Metrics of one iteration: what tasks measured, and what the timeline and the memory show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexrlhf.core.names import Role
from flexrlhf.core.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class RoleBytes:
    """Memory that a role holds all the time, in bytes."""

    weights: int
    optimizer: int = 0
    """Moments; zero for frozen roles."""

    @property
    def held(self) -> int:
        """Weights, gradients and moments."""
        return self.saved + (self.weights if self.optimizer else 0)

    @property
    def saved(self) -> int:
        """What a checkpoint holds of a trained role."""
        return self.weights + self.optimizer


def timeline_metrics(
    timeline: Timeline, iteration: int, *, after_s: float = -math.inf
) -> dict[str, float]:
    """Returns `time/*`, `share/*` and `utilization/mean` of one iteration of a timeline.

    The share of what did not happen is absent; that of the bubble is always there.

    Args:
        timeline: with the spans of the iteration, and of others that went on meanwhile.
        iteration: which.
        after_s: when the iteration before ended; where two overlap, this one counts from there.
    """
    first_s, end_s = timeline.window(iteration)
    start_s = min(end_s, max(first_s, after_s))
    metrics = {
        f"time/{stage}_s": seconds for stage, seconds in timeline.stage_seconds(iteration).items()
    }
    metrics["time/iteration_s"] = end_s - start_s
    metrics["time/driver_s"] = timeline.idle_s(start_s, end_s)
    for share, value in timeline.shares((start_s, end_s)).items():
        if value or share == "bubble":
            metrics[f"share/{share}"] = value
    metrics["utilization/mean"] = statistics.fmean(timeline.utilization((start_s, end_s)).values())
    return metrics


def memory_efficiency(
    spans: Sequence[Span], roles: Mapping[str, Mapping[Role, RoleBytes]]
) -> float:
    """Returns useful over held bytes, integrated over the spans of an iteration.

    Useful are the weights of the role that works, and while it trains also its gradients and
    moments; held are the bytes of all roles from the first start to the last end.

    Args:
        spans: of one iteration.
        roles: what each track holds.
    """
    held = sum(role.held for of_track in roles.values() for role in of_track.values())
    start_s = min(span.start_s for span in spans)
    end_s = max(span.end_s for span in spans)
    useful = 0.0
    for span in spans:
        role = roles[span.track].get(span.role) if span.role else None
        if role is not None:
            working = role.held if span.stage == "train" else role.weights
            useful += working * span.duration_s
    return useful / (held * (end_s - start_s)) if held and end_s > start_s else 0.0
