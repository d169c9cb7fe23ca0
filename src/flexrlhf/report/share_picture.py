"""A static picture of shares: a bar per row, cut by what its parts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.report.colours import REST_COLOUR
from flexrlhf.report.markup import Html, join
from flexrlhf.report.svg import box, legend, mark, picture, words, words_inside

_WIDTH: Final = 860
_LEFT, _RIGHT, _TOP = 270, 16, 36
_ROW, _BAR = 36, 26
_BELOW: Final = 30


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One bar."""

    name: str
    shares: Mapping[str, float]
    """Of a whole; what is missing stays free."""


def share_picture(rows: Sequence[ShareRow], colours: Mapping[str, str], *, title: str) -> Html:
    """Returns the bars below each other.

    Args:
        rows: from top to bottom.
        colours: of the parts, in the order of the legend; parts that are in no row are left out.
        title: what stands above.
    """
    height = _TOP + _ROW * len(rows) + _BELOW
    present = [part for part in colours if any(part in row.shares for row in rows)]
    return picture(
        _WIDTH,
        height,
        words(title, 8, 20, class_="title"),
        *(_bar(row, colours, _TOP + _ROW * place) for place, row in enumerate(rows)),
        legend([(part, mark(fill=colours[part])) for part in present], 12, height - 10),
        spoken=title,
    )


def _bar(row: ShareRow, colours: Mapping[str, str], top: float) -> Html:
    full, y = _WIDTH - _LEFT - _RIGHT, top + (_ROW - _BAR) / 2
    parts = [
        words(row.name, _LEFT - 10, y + 17, text_anchor="end"),
        box(_LEFT, y, full, _BAR, class_="frame", rx="2"),
    ]
    x = float(_LEFT)
    for part, share in row.shares.items():
        width = share * full
        parts.append(box(x, y, width, _BAR, fill=colours.get(part, REST_COLOUR)))
        parts.append(words_inside(f"{100 * share:.1f} %", x, y, width, _BAR))
        x += width
    return join(parts)
