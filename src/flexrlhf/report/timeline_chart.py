"""One iteration as lanes over time, coloured by stage; a prediction stands below what was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from flexrlhf.core.names import STAGES
from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.report.charts import Figure
from flexrlhf.report.colours import stage_colour
from flexrlhf.report.formats import format_seconds, short

_MOST_ITERATIONS = 12
_MOST_SPANS = 3000
"""In all figures of a stage together, so that a long run does not make a page of many megabytes."""
_LANE_HEIGHT = 38
"""In pixels of the page."""


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The spans of one process in one iteration, and the lane that each is drawn in."""

    process: str
    are_roles: bool
    """Lanes are roles, not tracks."""
    names: tuple[str, ...]
    placed: tuple[tuple[str, Span], ...]
    """In the order of their start."""

    @property
    def start_s(self) -> float:
        return self.placed[0][1].start_s

    @property
    def length_s(self) -> float:
        return max(span.end_s for _, span in self.placed) - self.start_s


def timeline_figures(timelines: Mapping[str, Timeline]) -> dict[int, Figure]:
    """Returns a figure for each of a few iterations, the first and the last among them.

    Args:
        timelines: by process; `measured` says which iterations there are, others are drawn below.
    """
    measured = timelines.get("measured")
    if measured is None or not measured.iterations:
        return {}
    sizes = Counter(span.iteration for span in measured.spans if span.iteration is not None)
    count = max(1, min(_MOST_ITERATIONS, _MOST_SPANS // max(sizes.values())))
    return {
        iteration: timeline_figure(timelines, iteration)
        for iteration in _spread(measured.iterations, count)
    }


def timeline_figure(timelines: Mapping[str, Timeline], iteration: int) -> Figure:
    """Returns the lanes of each process in an iteration, counted from its own start.

    A process without that iteration shows the nearest one that it has.
    """
    has_several = len(timelines) > 1
    processes = [
        _lanes(name, timeline, iteration, prefix=f"{name} · " if has_several else "")
        for name, timeline in timelines.items()
    ]
    drawn = [lanes for lanes in processes if lanes.placed]
    longest_s = max(lanes.length_s for lanes in drawn)
    scale, unit = (1e3, "ms") if longest_s < 1 else (1.0, "s")
    traces = [trace for lanes in drawn for trace in _stage_traces(lanes, scale)]
    names = [name for lanes in drawn for name in lanes.names]
    return {"data": _legend_once(traces), "layout": _layout(names, unit)}


def _lanes(process: str, timeline: Timeline, iteration: int, *, prefix: str) -> _Lanes:
    """A lane per track; of one track alone a lane per role, or one bar would hide the order."""
    spans = _spans_of(timeline, iteration)
    are_roles = len(timeline.tracks) < 2
    placed = tuple(
        (prefix + (str(span.role or span.stage) if are_roles else span.track), span)
        for span in spans
    )
    used = dict.fromkeys(lane for lane, _ in placed)
    names = used if are_roles else [prefix + track for track in timeline.tracks]
    return _Lanes(process, are_roles, tuple(names), placed)


def _spans_of(timeline: Timeline, iteration: int) -> list[Span]:
    nearest = min(timeline.iterations, key=lambda known: abs(known - iteration), default=None)
    spans = [span for span in timeline.spans if span.iteration == nearest]
    if len(spans) > _MOST_SPANS:
        spans = sorted(spans, key=lambda span: span.duration_s)[-_MOST_SPANS:]
    return sorted(spans, key=lambda span: span.start_s)


def _stage_traces(lanes: _Lanes, scale: float) -> list[Figure]:
    """One trace per stage and kind, so that the legend names stages and can hide them."""
    traces: list[Figure] = []
    for stage in _ordered_stages(span for _, span in lanes.placed):
        for is_transfer in (False, True):
            members = [
                (lane, span)
                for lane, span in lanes.placed
                if span.stage == stage and (span.transfer is not None) == is_transfer
            ]
            if members:
                traces.append(_trace(lanes, stage, members, scale))
    return traces


def _trace(lanes: _Lanes, stage: str, members: Sequence[tuple[str, Span]], scale: float) -> Figure:
    spans = [span for _, span in members]
    is_transfer = spans[0].transfer is not None
    return {
        "type": "bar",
        "orientation": "h",
        "name": stage,
        "legendgroup": stage,
        "y": [lane for lane, _ in members],
        "base": [short((span.start_s - lanes.start_s) * scale) for span in spans],
        "x": [short(span.duration_s * scale) for span in spans],
        "text": [_label(span, lanes) for span in spans],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertext": [_hover(span, lanes) for span in spans],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {
            "color": stage_colour(stage),
            "opacity": 1.0 if lanes.process == "measured" else 0.6,
            "line": {"width": 0.5, "color": "rgba(255, 255, 255, 0.6)"},
            "pattern": {
                "shape": "/" if is_transfer else "",
                "fillmode": "overlay",
                "fgcolor": "#ffffff",
                "fgopacity": 0.4,
                "size": 6,
            },
        },
    }


def _layout(names: Sequence[str], unit: str) -> Figure:
    return {
        "barmode": "overlay",
        "bargap": 0.25,
        "height": 110 + _LANE_HEIGHT * len(names),
        "hovermode": "closest",
        "showlegend": True,
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": {
            "title": {"text": f"time since the iteration began, {unit}"},
            "rangemode": "tozero",
        },
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(names),
            "range": [len(names) - 0.5, -0.5],
            "dtick": 1,
            "automargin": True,
        },
    }


def _label(span: Span, lanes: _Lanes) -> str:
    """What the lane's own name and the colour do not say already."""
    return escape(span.name if lanes.are_roles else span.role or span.transfer or "")


def _hover(span: Span, lanes: _Lanes) -> str:
    """Name, length, place in time and attributes of a span, as plotly's little HTML."""
    length, start = format_seconds(span.duration_s), format_seconds(span.start_s - lanes.start_s)
    kind = f"transfer of {span.transfer}" if span.transfer else ""
    words = (lanes.process, span.stage, kind, span.role)
    rows = [
        f"<b>{escape(span.name)}</b>",
        f"{length}, from {start}",
        " · ".join(escape(word) for word in words if word),
        f"on {escape(span.track)}",
    ]
    rows += [f"{escape(key)}: {escape(str(value))}" for key, value in span.attributes.items()]
    return "<br>".join(rows)


def _ordered_stages(spans: Iterable[Span]) -> list[str]:
    present = {span.stage for span in spans}
    return [stage for stage in STAGES if stage in present]


def _legend_once(traces: list[Figure]) -> list[Figure]:
    """A stage that several traces have is named once."""
    seen: set[str] = set()
    for trace in traces:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
    return traces


def _spread(iterations: Sequence[int], count: int) -> list[int]:
    """The last iteration, the first, and others evenly between; in order."""
    if len(iterations) <= count:
        return list(iterations)
    if count == 1:
        return [iterations[-1]]
    step = (len(iterations) - 1) / (count - 1)
    return [iterations[round(place * step)] for place in range(count)]
