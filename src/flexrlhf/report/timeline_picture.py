"""A static picture of one iteration: a lane per device, a box for each piece of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import SHADOWS, STAGES
from flexrlhf.core.timeline import Span
from flexrlhf.report.colours import REST_COLOUR, stage_colour
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.svg import (
    box,
    legend,
    line,
    mark,
    nice_ticks,
    picture,
    words,
    words_inside,
)

_WIDTH: Final = 860
_LEFT, _RIGHT, _TOP = 52, 16, 36
_LANE, _BAR = 34, 26
"""Height of a lane, and of the boxes in it, in pixels."""
_BELOW: Final = 66
"""For the numbers of the axis and the legend."""
_LIGHT: Final = "0.55"
_THINNEST: Final = 0.8
"""Pixels of the shortest box, so that none is lost."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """What one lane does from one moment to another."""

    lane: str
    stage: str
    label: str
    is_shadow: bool
    is_transfer: bool
    start_s: float
    end_s: float

    def continues(self, other: _Bar) -> bool:
        """Whether `other` is the same work without a pause."""
        ours = (self.lane, self.stage, self.label, self.is_shadow, self.is_transfer)
        theirs = (other.lane, other.stage, other.label, other.is_shadow, other.is_transfer)
        return ours == theirs and self.start_s <= other.end_s + 1e-9


def timeline_picture(
    spans: Iterable[Span],
    lanes: Mapping[str, str],
    *,
    title: str,
    label: Callable[[Span], str],
) -> Html:
    """Returns the picture of an iteration.

    Args:
        spans: of one iteration; those of other tracks are left out.
        lanes: the name that is shown for each track, from top to bottom.
        title: what stands above.
        label: what is written in the box of a span; spans of one label that follow each other in
            one lane become one box.
    """
    shown = sorted((span for span in spans if span.track in lanes), key=lambda s: s.start_s)
    begin_s = shown[0].start_s
    end_s = max(span.end_s for span in shown)
    bars = list(_merged(shown, label))
    ticks = [tick for tick in nice_ticks(0.0, end_s - begin_s, 8) if tick <= end_s - begin_s]
    scale = (_WIDTH - _LEFT - _RIGHT) / (end_s - begin_s)
    height = _TOP + _LANE * len(lanes) + _BELOW
    rows = {track: _TOP + _LANE * place for place, track in enumerate(lanes)}
    return picture(
        _WIDTH,
        height,
        _hatching(),
        words(title, 8, 20, class_="title"),
        _axis(ticks, scale, height - _BELOW),
        *(
            words(name, _LEFT - 8, rows[track] + 21, text_anchor="end")
            for track, name in lanes.items()
        ),
        *(_drawn(bar, rows[bar.lane], (bar.start_s - begin_s) * scale, scale) for bar in bars),
        _legend(bars, height - 18),
        spoken=title,
    )


def _merged(spans: Sequence[Span], label: Callable[[Span], str]) -> Iterator[_Bar]:
    """Boxes in the order of their start; one lane's neighbours of one label are one."""
    open_bars: dict[tuple[str, bool], _Bar] = {}
    for span in spans:
        bar = _Bar(
            span.track,
            span.stage,
            label(span),
            span.role in SHADOWS.values(),
            span.transfer is not None,
            span.start_s,
            span.end_s,
        )
        key = (bar.lane, bar.is_transfer)
        last = open_bars.get(key)
        if last is not None and bar.continues(last):
            bar = _Bar(*_kind(last), last.start_s, max(last.end_s, bar.end_s))
        elif last is not None:
            yield last
        open_bars[key] = bar
    yield from open_bars.values()


def _kind(bar: _Bar) -> tuple[str, str, str, bool, bool]:
    return bar.lane, bar.stage, bar.label, bar.is_shadow, bar.is_transfer


def _drawn(bar: _Bar, top: float, start: float, scale: float) -> Html:
    x, y = _LEFT + start, top + (_LANE - _BAR) / 2
    width = max((bar.end_s - bar.start_s) * scale, _THINNEST)
    look = {"fill": stage_colour(bar.stage), "rx": "2"}
    if bar.is_transfer:
        look["opacity"] = _LIGHT
    parts = [box(x, y, width, _BAR, **look)]
    if bar.is_shadow:
        parts.append(box(x, y, width, _BAR, fill="url(#hatch)", rx="2"))
    return join([*parts, words_inside(bar.label, x, y, width, _BAR)])


def _hatching() -> Html:
    stroke = line((0, 0), (0, 7), stroke="#ffffff", stroke_width="2", stroke_opacity="0.4")
    pattern = element(
        "pattern",
        stroke,
        id="hatch",
        width="7",
        height="7",
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return element("defs", pattern)


def _axis(ticks: Sequence[float], scale: float, bottom: float) -> Html:
    parts: list[Html] = []
    for tick in ticks:
        x = _LEFT + tick * scale
        parts.append(line((x, _TOP), (x, bottom), class_="grid"))
        unit = " s" if tick == ticks[-1] else ""
        parts.append(words(f"{tick:g}{unit}", x, bottom + 16, text_anchor="middle"))
    return join(parts)


def _legend(bars: Sequence[_Bar], y: float) -> Html:
    """The stages that occur, and what hatching and light boxes mean, where there are any."""
    present = {bar.stage for bar in bars}
    parts = [(stage, mark(fill=stage_colour(stage))) for stage in STAGES if stage in present]
    if any(bar.is_shadow for bar in bars):
        hatched = join([mark(fill=REST_COLOUR), mark(fill="url(#hatch)")])
        parts.append(("work of a shadow", hatched))
    if any(bar.is_transfer for bar in bars):
        parts.append(("data moves", mark(fill=REST_COLOUR, opacity=_LIGHT)))
    return legend(parts, _LEFT, y)
