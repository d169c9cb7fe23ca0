"""Metrics that compare a case with another run of the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.course import Course, course_of
from flexrlhf.planning.cases.setting import setting_of
from flexrlhf.planning.costs.calibration import Calibration

_BASELINE: Final = "DeepSpeed-Chat"
Comparison = Callable[[Case, Assumptions, Calibration | None], float]


def _both(case: Case, taken: Assumptions, calibration: Calibration | None) -> tuple[Course, Course]:
    """The course of a case, and that of what it is compared with."""
    versus = case.variant.get("versus", "")
    baseline = {**case.words, "system": versus or _BASELINE, "strategy": "colocated"}
    baseline = {key: word for key, word in baseline.items() if key != "generation_engine"}
    taken.note(f"compared with {versus or _BASELINE}, colocated")
    other = replace(case, words=baseline)
    return (
        course_of(setting_of(case, taken, calibration=calibration)),
        course_of(setting_of(other, Assumptions(), calibration=calibration)),
    )


def _rate(course: Course) -> float:
    return course.setting.request.workload.num_samples / course.iteration_s


def _speedup(case: Case, taken: Assumptions, calibration: Calibration | None) -> float:
    own, other = _both(case, taken, calibration)
    return _rate(own) / _rate(other)


def _per_cost(case: Case, taken: Assumptions, calibration: Calibration | None) -> float:
    own, other = _both(case, taken, calibration)
    prices = [c.setting.request.cluster.price_per_hour() for c in (own, other)]
    if prices[0] is None or prices[1] is None:
        taken.note("no price is known: devices cost the same")
        prices = [float(own.setting.num_devices), float(other.setting.num_devices)]
    assert prices[0] is not None
    assert prices[1] is not None
    return _rate(own) / prices[0] / (_rate(other) / prices[1])


def _scaling(case: Case, taken: Assumptions, calibration: Calibration | None) -> float:
    own = course_of(setting_of(case, taken, calibration=calibration))
    few = min(8, own.setting.num_devices)
    numbers = {k: v for k, v in case.numbers.items() if not k.startswith("n_gpus")}
    taken.note(f"scaling from {few} devices")
    smaller = replace(case, numbers=numbers | {"n_gpus": float(few)})
    base = course_of(setting_of(smaller, Assumptions(), calibration=calibration))
    return _rate(own) / _rate(base) * few / own.setting.num_devices


def _less_generation(case: Case, taken: Assumptions, calibration: Calibration | None) -> float:
    own, other = _both(case, taken, calibration)
    return 1 - own.generation_s() / other.generation_s()


def _less_sync(case: Case, taken: Assumptions, calibration: Calibration | None) -> float:
    own, other = _both(case, taken, calibration)
    return other.stage_s("sync") - own.stage_s("sync")


COMPARISONS: Final[Mapping[str, Comparison]] = {
    "speedup": _speedup,
    "speedup_per_cost": _per_cost,
    "scaling_efficiency": _scaling,
    "generation_time_reduction": _less_generation,
    "weight_sync_time_reduction": _less_sync,
}
"""By metric."""
