"""Static pictures as SVG, for pages that run no script: a frame, boxes, lines and words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from flexrlhf.report.markup import Html, element, join

STYLE: Final = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #5f6b7c; }
.title { font-size: 14px; font-weight: 600; fill: #1d2430; }
.inside { font-size: 11px; fill: #ffffff; }
.grid { stroke: #e1e5eb; }
.frame { fill: none; stroke: #c9d0da; }
@media (prefers-color-scheme: dark) {
  text { fill: #98a4b5; }
  .title { fill: #e4e8ee; }
  .inside { fill: #ffffff; }
  .grid { stroke: #3a4350; }
  .frame { stroke: #3a4350; }
}
"""
"""Colours that suit light pages and dark ones."""
_LETTER_WIDTH: Final = 5.6
"""Of a letter of 11 pixels, in pixels, on average."""


def picture(width: float, height: float, *parts: Html, spoken: str) -> Html:
    """Returns a whole picture.

    Args:
        width: in pixels.
        height: in pixels.
        parts: what it shows.
        spoken: what it shows, for those who do not see it.
    """
    return element(
        "svg",
        element("style", Html(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        width=number(width),
        height=number(height),
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=spoken,
    )


def box(x: float, y: float, width: float, height: float, **attributes: str) -> Html:
    """Returns a rectangle from its upper left corner."""
    size = {"width": number(width), "height": number(height)}
    return element("rect", x=number(x), y=number(y), **size, **attributes)


def line(start: tuple[float, float], end: tuple[float, float], **attributes: str) -> Html:
    """Returns a straight line."""
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    return element("line", **{key: number(value) for key, value in ends.items()}, **attributes)


def words(text: str, x: float, y: float, **attributes: str) -> Html:
    """Returns words whose baseline starts at a point; `text_anchor` may say otherwise."""
    return element("text", text, x=number(x), y=number(y), **attributes)


def words_inside(text: str, x: float, y: float, width: float, height: float) -> Html:
    """Returns words in the middle of a box, nothing where they would not fit."""
    if not text or len(text) * _LETTER_WIDTH > width - 3:
        return Html("")
    middle = {"text_anchor": "middle", "dominant_baseline": "central"}
    return words(text, x + width / 2, y + height / 2, class_="inside", **middle)


def legend(entries: Iterable[tuple[str, Html]], x: float, y: float) -> Html:
    """Returns marks of 12 pixels with their names, side by side.

    Args:
        entries: names, and marks drawn at the origin; see `mark`.
        x: of the first mark.
        y: baseline of the names.
    """
    placed: list[Html] = []
    for name, drawn in entries:
        named = words(name, 17, 0)
        placed.append(element("g", drawn, named, transform=f"translate({number(x)} {number(y)})"))
        x += 36 + 6.5 * len(name)
    return join(placed)


def mark(**attributes: str) -> Html:
    """Returns the box that stands before a name of a legend."""
    return box(0, -10, 12, 12, rx="2", **attributes)


def number(value: float) -> str:
    """Returns a length with at most one decimal: enough for a pixel, and the same on every run."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns about `count` round numbers that span `low` to `high`.

    Example:
        >>> nice_ticks(0.02, 0.33)
        [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    if not high > low:
        return [low - 0.5, low, low + 0.5]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]
