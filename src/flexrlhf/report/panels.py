"""Pictures of lines on logarithmic or even axes, one panel beside the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.svg import box, legend, line, mark, picture, words

_WIDTH, _HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 34, 44
_LEGEND: Final = 22
_LETTER: Final = 6.5
"""Width of a letter of a legend, in pixels, and the room that mark and gap take beside it."""
_MARK: Final = 40


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a panel."""

    name: str
    ticks: Sequence[float]
    """Ascending; the first and the last are the ends."""
    is_log: bool = False
    unit: str = ""

    def part(self, value: float) -> float:
        """Returns the place of a value between the ends, 0 to 1; beyond them that of the end."""
        low, high, value = self.ticks[0], self.ticks[-1], float(value)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line; curves of one name share an entry of the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    is_dashed: bool = False
    has_dots: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one pair of axes."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    level: float | None = None
    """Height of a line that means something: no difference, or a goal."""


def panels_picture(panels: Sequence[Panel], *, columns: int, spoken: str) -> Html:
    """Returns the panels row by row over one legend.

    Args:
        panels: at least one.
        columns: panels in a row.
        spoken: what the picture shows, for those who do not see it.
    """
    rows = -(-len(panels) // columns)
    drawn = [
        element(
            "g", _panel(p), transform=f"translate({i % columns * _WIDTH} {i // columns * _HEIGHT})"
        )
        for i, p in enumerate(panels)
    ]
    marks = {c.name: _mark(c) for panel in panels for c in panel.curves}
    lines = _legend_lines(list(marks.items()), columns * _WIDTH)
    height = rows * _HEIGHT + _LEGEND * len(lines)
    legends = [
        legend(entries, _LEFT, rows * _HEIGHT + 16 + _LEGEND * place)
        for place, entries in enumerate(lines)
    ]
    return picture(columns * _WIDTH, height, *drawn, *legends, spoken=spoken)


def _legend_lines(
    entries: Sequence[tuple[str, Html]], width: float
) -> list[list[tuple[str, Html]]]:
    """The entries in as many lines as they need."""
    lines: list[list[tuple[str, Html]]] = [[]]
    x = float(_LEFT)
    for entry in entries:
        step = _MARK + _LETTER * len(entry[0])
        if x + step > width and lines[-1]:
            lines.append([])
            x = float(_LEFT)
        lines[-1].append(entry)
        x += step
    return lines


def _mark(curve: Curve) -> Html:
    if not curve.is_dashed:
        return mark(fill=curve.colour)
    return line((-2, -4), (13, -4), stroke=curve.colour, stroke_width="2", stroke_dasharray="5 3")


def _x(panel: Panel, value: float) -> float:
    return _LEFT + panel.x.part(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(panel: Panel, value: float) -> float:
    return _HEIGHT - _BOTTOM - panel.y.part(value) * (_HEIGHT - _TOP - _BOTTOM)


def _panel(panel: Panel) -> Html:
    base = _HEIGHT - _BOTTOM
    parts = [
        words(panel.title, 8, 20, class_="title"),
        box(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, base - _TOP, class_="frame"),
        words(panel.x.name, (_LEFT + _WIDTH - _RIGHT) / 2, base + 34, text_anchor="middle"),
    ]
    for tick in panel.y.ticks:
        y = _y(panel, tick)
        parts.append(line((_LEFT, y), (_WIDTH - _RIGHT, y), class_="grid"))
        label = f"{tick:g}{panel.y.unit}"
        parts.append(words(label, _LEFT - 8, y + 4, text_anchor="end"))
    for tick in panel.x.ticks:
        label = f"{tick:g}{panel.x.unit}"
        parts.append(words(label, _x(panel, tick), base + 17, text_anchor="middle"))
    if panel.level is not None:
        y = _y(panel, panel.level)
        look = {"stroke": "#98a4b5", "stroke_width": "1.5"}
        parts.append(line((_LEFT, y), (_WIDTH - _RIGHT, y), **look))
    return join([*parts, *(_curve(panel, curve) for curve in panel.curves)])


def _curve(panel: Panel, curve: Curve) -> Html:
    places = [(_x(panel, x), _y(panel, y)) for x, y in curve.points]
    dash = {"stroke_dasharray": "5 3"} if curve.is_dashed else {}
    drawn = element(
        "polyline",
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        fill="none",
        stroke=curve.colour,
        stroke_width="2",
        stroke_linejoin="round",
        **dash,
    )
    dots = [
        element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.5", fill=curve.colour)
        for x, y in places
        if curve.has_dots
    ]
    return join([drawn, *dots])
