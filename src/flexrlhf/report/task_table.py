"""What each kind of task was expected to take on a device beside what it took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.report.formats import format_seconds
from flexrlhf.report.markup import Html, element, join, table

_HEADER: Final = ("task", "per iteration", "predicted", "measured", "prediction off by")
_WARM_UP: Final = 1
"""Iterations at the start that take longer, left out where others were measured."""


def task_table(timelines: Mapping[str, Timeline]) -> Html | None:
    """Returns a row per kind of task; None unless a run has been predicted and measured.

    Args:
        timelines: `predicted` and `measured`, by that name.
    """
    if not {"predicted", "measured"} <= timelines.keys():
        return None
    predicted, measured = _kinds(timelines["predicted"]), _kinds(timelines["measured"])
    rows = [
        (
            kind,
            f"{len(times) / _iterations(timelines['measured']):.3g}",
            format_seconds(statistics.median(predicted[kind])),
            format_seconds(statistics.median(times)),
            _off(statistics.median(predicted[kind]), statistics.median(times)),
        )
        for kind, times in measured.items()
        if kind in predicted
    ]
    if not rows:
        return None
    words = (
        "Seconds of one task on one device, medians over devices and iterations. A device that "
        "waits for the others of its group inside a task is counted as being at work."
    )
    return join([element("p", words, class_="quiet"), table(_HEADER, rows)])


def _kinds(timeline: Timeline) -> dict[str, list[float]]:
    """Returns the seconds of every task on every device, by kind; parts of one task added up."""
    seconds: dict[tuple[str, int, str], float] = {}
    kinds: dict[tuple[str, int, str], str] = {}
    for span in _counted(timeline):
        key = (span.track, span.iteration or 0, span.name)
        seconds[key] = seconds.get(key, 0.0) + span.duration_s
        kinds[key] = _kind(span)
    found: dict[str, list[float]] = {}
    for key, taken in seconds.items():
        found.setdefault(kinds[key], []).append(taken)
    return found


def _counted(timeline: Timeline) -> list[Span]:
    iterations = sorted(timeline.iterations)
    kept = set(iterations[_WARM_UP:] or iterations)
    return [span for span in timeline.spans if span.iteration in kept]


def _iterations(timeline: Timeline) -> int:
    return len({(span.track, span.iteration) for span in _counted(timeline)}) or 1


def _kind(span: Span) -> str:
    """The operation, and whose it is: `forward_backward actor`."""
    operation = span.name.partition("/")[0]
    return f"{operation} {span.role}" if span.role else operation


def _off(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f} %" if measured > 0 else "–"
