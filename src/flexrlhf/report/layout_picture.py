"""A static picture of one placement: devices are columns, roles bars, shadows dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flexrlhf.core.names import Role, kind_of
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.report.colours import ALARM_COLOUR, ROLE_COLOURS
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.placement_board import (
    Board,
    Sync,
    arrow_of,
    boards_of,
    is_shadow,
    rows_of,
    runs_of,
)
from flexrlhf.report.svg import box, line, picture, words

_WIDTH: Final = 420
_LEFT, _TOP = 104, 84
_ROW, _BAR, _ARROW = 28, 22, 26
_HALF: Final = 5
"""Half the width of an arrow's head, in pixels."""
_SYNC_LINE: Final = {"stroke": ALARM_COLOUR, "stroke_width": "1.5"}


def layout_picture(plan: Plan, cluster: Cluster, *, title: str, names: Mapping[int, str]) -> Html:
    """Returns the picture of a plan on its cluster.

    Args:
        plan: role by role its devices.
        cluster: the machines.
        title: what stands above.
        names: what the devices are called, by their numbers.
    """
    boards = boards_of(plan, cluster)
    rows = list(rows_of(plan))
    columns = sum(len(board.slots) for board in boards) + 0.4 * (len(boards) - 1)
    step = (_WIDTH - _LEFT - 12) / columns
    parts, top = [words(title, 8, 20, class_="title")], float(_TOP)
    for row in rows:
        if isinstance(row, Sync):
            parts.append(_arrow(row, boards, step, top))
            top += _ARROW
        else:
            parts.append(_bars(row, boards, step, top))
            top += _ROW
    frames = [_frame(board, place, boards, step, top) for place, board in enumerate(boards)]
    heads = [_heads(boards, step, names)]
    spoken = f"{title}: {', '.join(f'{r} on {list(p.devices)}' for r, p in plan.placement.items())}"
    return picture(_WIDTH, top + 14, *frames, *heads, *parts, spoken=spoken)


def _x(column: float, boards: Sequence[Board], step: float) -> float:
    """Where a column of `runs_of` begins; the free one between two boards is narrow."""
    gaps, seen = 0, 0
    for board in boards[:-1]:
        seen += len(board.slots)
        gaps += column > seen + gaps
    return _LEFT + (column - 0.6 * gaps) * step


def _frame(board: Board, place: int, boards: Sequence[Board], step: float, bottom: float) -> Html:
    first = sum(len(b.slots) for b in boards[:place]) + place
    x = _x(first, boards, step)
    width = len(board.slots) * step
    device = board.nodes[0].device.name
    name = words(device, x + width / 2, 46, text_anchor="middle")
    return join([name, box(x, 54, width, bottom - 48, class_="frame", rx="6")])


def _heads(boards: Sequence[Board], step: float, names: Mapping[int, str]) -> Html:
    parts: list[Html] = []
    column = 0
    for board in boards:
        for slot in board.slots:
            x = _x(column, boards, step) + step / 2
            parts.append(words(names[slot.first], x, 72, text_anchor="middle"))
            column += 1
        column += 1
    return join(parts)


def _bars(role: Role, boards: Sequence[Board], step: float, top: float) -> Html:
    y = top + (_ROW - _BAR) / 2
    parts = [words(role.replace("_", " "), _LEFT - 8, y + 15, text_anchor="end")]
    look = {"fill": ROLE_COLOURS[kind_of(role)], "rx": "4"}
    if is_shadow(role):
        look |= {"stroke": "#5f6b7c", "stroke_width": "1.5", "stroke_dasharray": "5 3"}
    for run in runs_of(role, boards):
        x = _x(run.start, boards, step) + 3
        width = (run.stop - run.start) * step - 6
        parts.append(box(x, y, width, _BAR, **look))
    return join(parts)


def _arrow(sync: Sync, boards: Sequence[Board], step: float, top: float) -> Html:
    """New weights go from the trained role above to the shadow below."""
    ends = arrow_of(sync, boards)
    if ends is None:
        return Html("")
    start, end = (_x((run.start + run.stop) / 2, boards, step) for run in ends)
    middle, bottom = top + _ARROW / 2, top + _ARROW
    head = f"{end - _HALF:.1f},{bottom - 7} {end + _HALF:.1f},{bottom - 7} {end:.1f},{bottom}"
    return join(
        [
            line((start, top - 2), (start, middle), **_SYNC_LINE),
            line((start, middle), (end, middle), **_SYNC_LINE),
            line((end, middle), (end, bottom - 6), **_SYNC_LINE),
            element("polygon", points=head, fill=ALARM_COLOUR),
        ]
    )
