"""The placement as a picture: devices are columns, roles bars, shadows dashed, syncs arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flexrlhf.core.names import Role, kind_of
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.report.colours import ROLE_COLOURS
from flexrlhf.report.formats import format_ranges
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

_HEAD_ROWS = 2
"""Names of the nodes, numbers of the devices."""


def placement_picture(plan: Plan, cluster: Cluster) -> Html:
    """Returns the picture of a plan on its cluster."""
    boards = boards_of(plan, cluster)
    rows = list(rows_of(plan))
    items = [
        *_frames(boards, len(rows)),
        *(item for number, row in enumerate(rows) for item in _row(row, number, plan, boards)),
    ]
    columns = " ".join(f"repeat({len(board.slots)}, minmax(15px, 1fr))" for board in boards)
    columns = columns.replace(") repeat", ") 14px repeat")
    grid = element(
        "div", *items, class_="board", style=f"grid-template-columns: minmax(84px, auto) {columns}"
    )
    return element("div", grid, class_="table-box picture", role="img", aria_label=_spoken(plan))


def degrees_in_words(placed: RolePlacement) -> str:
    """Returns how a role is split, short; what is 1 or off is left out."""
    words = [
        f"{value} {word}"
        for value, word in (
            (placed.tensor_parallel, "tensor parallel"),
            (placed.pipeline_parallel, "stages"),
            (placed.data_parallel, "replicas"),
        )
        if value > 1
    ]
    if placed.zero_stage:
        blocks = f" in blocks of {placed.shard_devices}" if placed.shard_devices else ""
        words.append(f"ZeRO {placed.zero_stage}{blocks}")
    if placed.offload:
        words.append("offloaded")
    return " · ".join(words) or "whole"


def _frames(boards: Sequence[Board], num_rows: int) -> Iterator[Html]:
    column = 0
    for board in boards:
        width = len(board.slots)
        last = _HEAD_ROWS + num_rows + 1
        yield element("div", class_="node", style=_area(column, column + width, 1, last))
        yield element(
            "div", _node_words(board), class_="node-name", style=_area(column, column + width, 1, 2)
        )
        for place, slot in enumerate(board.slots, start=column):
            label = f"×{slot.count}" if slot.count > 1 else str(slot.first)
            is_numbered = slot.count > 1 or len(board.nodes) == 1
            yield element(
                "div",
                label if is_numbered else "",
                class_="device" if slot.roles else "device unused",
                style=_area(place, place + 1, 2, 3),
            )
        column += width + 1


def _node_words(board: Board) -> Html:
    node, count = board.nodes[0], len(board.nodes)
    numbers = format_ranges(node.index for node in board.nodes)
    name = f"node {numbers}" if count == 1 else f"{count} alike: nodes {numbers}"
    devices = f"{len(node.devices)} × {node.device.name}"
    pool = "" if node.pool == "all" else f" · {node.pool}"
    return join([element("b", name), element("span", f"{devices}{pool}")])


def _row(row: Role | Sync, number: int, plan: Plan, boards: Sequence[Board]) -> Iterator[Html]:
    line = _HEAD_ROWS + 1 + number
    if isinstance(row, Sync):
        yield from _arrow(row, line, boards)
        return
    placed = plan.placement[row]
    yield element("div", row.replace("_", " "), class_="role", style=f"grid-row: {line}")
    kind = "bar shadow" if is_shadow(row) else "bar"
    colour = ROLE_COLOURS[kind_of(row)]
    for run in runs_of(row, boards):
        area = _area(run.start, run.stop, line, line + 1)
        words = degrees_in_words(placed)
        yield element(
            "div", words, class_=kind, style=f"{area}; --role: {colour}", title=f"{row}: {words}"
        )


def _arrow(sync: Sync, line: int, boards: Sequence[Board]) -> Iterator[Html]:
    """From the middle of the trained role's last bar to that of the shadow's first."""
    ends = arrow_of(sync, boards)
    if ends is None:
        return
    start, end = ends
    low, high = sorted((start.middle, end.middle))
    way = "down" if start.middle == end.middle else "right" if start.middle < end.middle else "left"
    yield element(
        "div",
        element("span", "new weights"),
        element("i"),
        class_=f"arrow {way}",
        style=f"{_area(low, high + 1, line, line + 1)}; --span: {high + 1 - low}",
    )


def _area(start: int, stop: int, first: int, last: int) -> str:
    """Columns of the picture begin behind the names of the roles."""
    return f"grid-area: {first} / {start + 2} / {last} / {stop + 2}"


def _spoken(plan: Plan) -> str:
    places = (
        f"{role} on devices {format_ranges(placed.devices)}"
        for role, placed in plan.placement.items()
    )
    return f"{plan.strategy}: {', '.join(places)}"
