"""A picture of the best shares of devices that generate, beside the paper's range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flexrlhf.planning.placement.strategies.guideline import LEAST_SHARE, MOST_SHARE
from flexrlhf.report.colours import REST_COLOUR, SERIES_COLOURS
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.svg import box, legend, line, mark, nice_ticks, picture, words

Row = Mapping[str, Any]
_WIDTH, _HEIGHT = 440, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 24, 34, 44
_BINS: Final = 10
_RANGE_COLOUR: Final = SERIES_COLOURS[6]
_KINDS: Final = {True: "pools are the best plan", False: "another plan is better"}
_COLOURS: Final = {True: SERIES_COLOURS[0], False: REST_COLOUR}


def share_panels(rows: Sequence[Row]) -> Html:
    """Returns a panel for synchronous runs and one for those a round stale."""
    held = [row for row in rows if row["pools"] is not None]
    by_mode = {
        "Synchronous (simulated)": [r for r in held if r["case"]["staleness"] == 0],
        "One round stale (simulated)": [r for r in held if r["case"]["staleness"] == 1],
    }
    most = max((max(_stack(rows)) for rows in by_mode.values()), default=1)
    ticks = nice_ticks(0, max(most, 4))
    panels = [
        element("g", _panel(title, found, ticks), transform=f"translate({place * _WIDTH} 0)")
        for place, (title, found) in enumerate(by_mode.items())
    ]
    entries = [(_KINDS[key], mark(fill=_COLOURS[key])) for key in _KINDS]
    entries.append(("30 to 50 %", mark(fill=_RANGE_COLOUR, fill_opacity="0.3")))
    return picture(
        2 * _WIDTH,
        _HEIGHT + 30,
        *panels,
        legend(entries, _LEFT, _HEIGHT + 16),
        spoken="In how many cases which share of devices that generate is best",
    )


def _bin(row: Row) -> int:
    """A tenth of the devices; a share on a border counts to the tenth below it."""
    return min(_BINS - 1, max(0, int(_BINS * row["pools"]["share"] - 1e-9)))


def _stack(rows: Sequence[Row]) -> list[int]:
    return [sum(_bin(row) == place for row in rows) for place in range(_BINS)]


def _panel(title: str, rows: Sequence[Row], ticks: Sequence[float]) -> Html:
    width, base = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM
    height, step = base - _TOP, width / _BINS
    left, right = _LEFT + LEAST_SHARE * width, _LEFT + MOST_SHARE * width
    shade = {"fill": _RANGE_COLOUR, "fill_opacity": "0.3"}
    middle = _LEFT + width / 2
    parts = [
        words(title, 8, 20, class_="title"),
        box(left, _TOP, right - left, height, **shade),
        words("devices that generate", middle, base + 34, text_anchor="middle"),
    ]
    for tick in ticks:
        y = base - tick / ticks[-1] * height
        parts.append(line((_LEFT, y), (_WIDTH - _RIGHT, y), class_="grid"))
        parts.append(words(f"{tick:g}", _LEFT - 8, y + 4, text_anchor="end"))
    for part in range(0, 101, 20):
        x = _LEFT + width * part / 100
        parts.append(words(f"{part} %", x, base + 17, text_anchor="middle"))
    tops = [float(base)] * _BINS
    for wins in _KINDS:
        counts = _stack([row for row in rows if row["pools"]["wins"] is wins])
        for place, count in enumerate(counts):
            tall = count / ticks[-1] * height
            tops[place] -= tall
            if count:
                x = _LEFT + place * step + 2
                parts.append(box(x, tops[place], step - 4, tall, fill=_COLOURS[wins]))
    return join(parts)
