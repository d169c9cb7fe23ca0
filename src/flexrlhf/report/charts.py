"""Charts as plain plotly figures; colours of paper and ink, and fonts, come from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexrlhf.report.colours import translucent
from flexrlhf.report.formats import short
from flexrlhf.report.series import Series, grouped_mean, moving_mean

Figure = dict[str, Any]
"""`{"data": [...], "layout": {...}}`, as plotly.js takes it."""

_FEW_POINTS = 40
"""Up to here every point is marked; above it a moving mean may be drawn over the raw line."""

_MOST_BARS = 80


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure and the words around it."""

    title: str
    unit: str
    """Of the vertical axis; empty for a plain number."""
    caption: str
    """What the reader should look for, in a sentence."""
    figure: Figure
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    series: Series
    label: str
    colour: str
    is_noisy: bool = True
    """Whether a moving mean helps; False for what is exact, a learning rate for example."""


def moving_window(num_points: int) -> int:
    """Returns how many iterations the moving mean of a noisy line takes; 1 where none is drawn."""
    return 2 * (num_points // 40) + 3 if num_points > _FEW_POINTS else 1


def line_figure(lines: Sequence[Line], *, unit: str = "", is_log: bool = False) -> Figure:
    """Returns lines over the iterations; a long noisy one is pale under its moving mean."""
    traces: list[Figure] = []
    for line in lines:
        traces.extend(_line_traces(line, unit))
    axis = {"type": "log"} if is_log else _constant_range(lines)
    return {"data": traces, "layout": {"yaxis": axis, "showlegend": len(lines) > 1}}


def band_traces(centre: Series, spread: Series, colour: str) -> list[Figure]:
    """Returns the area one `spread` above and below `centre`, at the iterations that have both."""
    widths = dict(zip(spread.iterations, spread.values, strict=True))
    points = [
        (iteration, value, widths[iteration])
        for iteration, value in zip(centre.iterations, centre.values, strict=True)
        if iteration in widths
    ]
    forward = [iteration for iteration, _, _ in points]
    return [
        {
            "type": "scatter",
            "x": forward + forward[::-1],
            "y": [short(v + s) for _, v, s in points]
            + [short(v - s) for _, v, s in reversed(points)],
            "mode": "lines",
            "line": {"width": 0},
            "fill": "toself",
            "fillcolor": translucent(colour, 0.14),
            "name": "± std",
            "hoverinfo": "skip",
        }
    ]


def stacked_figure(lines: Sequence[Line], *, unit: str = "") -> Figure:
    """Returns one bar per iteration, or per `bar_size` of them, cut into the lines' values."""
    traces: list[Figure] = []
    for line in lines:
        bars = grouped_mean(line.series, bar_size(len(line.series.values)))
        traces.append(
            {
                "type": "bar",
                "x": list(bars.iterations),
                "y": [short(value) for value in bars.values],
                "name": line.label,
                "marker": {"color": line.colour, "line": {"width": 0}},
                "hovertemplate": f"%{{y:.3~g}} {unit}",
            }
        )
    return {"data": traces, "layout": {"barmode": "stack", "bargap": 0.12, "showlegend": True}}


def bar_size(num_points: int) -> int:
    """Returns how many iterations share a bar, whose height is then their mean."""
    return -(-num_points // _MOST_BARS)


def threshold_trace(value: float, label: str, along: Series, colour: str) -> Figure:
    """Returns a dotted horizontal line at `value` over the iterations of `along`."""
    return {
        "type": "scatter",
        "x": [along.iterations[0], along.iterations[-1]],
        "y": [value, value],
        "name": label,
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _constant_range(lines: Sequence[Line]) -> Figure:
    """Zero and twice the value, where all are the same: plotly would draw 1e-5 from -1 to 1."""
    values = {value for line in lines for value in line.series.values}
    if len(values) != 1 or values == {0.0}:
        return {}
    return {"range": sorted([0.0, short(2 * values.pop())])}


def _line_traces(line: Line, unit: str) -> list[Figure]:
    has_few = len(line.series.values) <= _FEW_POINTS
    raw: Figure = {
        "type": "scatter",
        "x": list(line.series.iterations),
        "y": [short(value) for value in line.series.values],
        "name": line.label,
        "mode": "lines+markers" if has_few else "lines",
        "line": {"color": line.colour, "width": 2},
        "marker": {"color": line.colour, "size": 5},
        "hovertemplate": f"%{{y:.4~g}} {unit}",
    }
    window = moving_window(len(line.series.values))
    if window == 1 or not line.is_noisy:
        return [raw]
    pale = {"line": {"color": translucent(line.colour, 0.35), "width": 1}, "showlegend": False}
    smooth = {
        "y": [short(value) for value in moving_mean(line.series.values, window)],
        "hoverinfo": "skip",
        "hovertemplate": None,
    }
    return [raw | pale, raw | smooth]
