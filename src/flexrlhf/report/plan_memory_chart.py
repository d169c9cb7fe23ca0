"""Memory of devices that are alike: a bar per stage, cut by use, against the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.placement.device_memory import Need
from flexrlhf.planning.search.winner import KindMemory
from flexrlhf.report.charts import Figure
from flexrlhf.report.colours import ALARM_COLOUR, REST_COLOUR
from flexrlhf.report.formats import format_bytes, short

USE_COLOURS: Final[Mapping[str, str]] = {
    "weights": "#4c78d0",
    "engine weights": "#8fa9e3",
    "optimizer": "#2f9e8f",
    "gradients": "#9a77cf",
    "whole gradients": "#c3aee6",
    "activations": "#d98032",
    "activation gradients": "#edb98a",
    "cache": "#e2a130",
    "logits": "#b59a2f",
    "gathered layers": "#5aa9c9",
    "buckets": "#d4596b",
}
"""By what bytes are for, in the order of drawing."""
REST_USE: Final = "driver and fragments"
_GIB: Final = 2**30
_BAR_HEIGHT: Final = 34
_AT_REST: Final = "at rest"


def memory_figure(kind: KindMemory) -> Figure:
    """Returns the bars of one kind of device in GiB."""
    needs = dict(_shown(kind))
    traces = [trace for use in uses_of([kind]) for trace in _traces(use, needs)]
    return {"data": traces, "layout": _layout(kind, list(needs))}


def uses_of(kinds: Sequence[KindMemory]) -> list[str]:
    """Returns the uses that occur, in the order of drawing."""
    present = {
        _split(name)[1]
        for kind in kinds
        for _, need in _shown(kind)
        for name, value in need.parts.items()
        if value
    }
    known = [use for use in USE_COLOURS if use in present]
    return [*known, *sorted(present - set(known)), REST_USE]


def use_colour(use: str) -> str:
    """Returns the colour of a use; grey for what is none."""
    return USE_COLOURS.get(use, REST_COLOUR)


def _shown(kind: KindMemory) -> Iterator[tuple[str, Need]]:
    """Stages with work, and one row for what lies there in all others."""
    for stage, need in kind.needs.items():
        if need.role is not None:
            yield stage, need
    idle = next((need for need in kind.needs.values() if need.role is None), None)
    if idle is not None:
        yield _AT_REST, idle


def _traces(use: str, needs: Mapping[str, Need]) -> Iterator[Figure]:
    """One trace per role that has bytes of this use, so that each can be told apart."""
    if use == REST_USE:
        rest = {row: need.total - sum(need.parts.values()) for row, need in needs.items()}
        yield _trace(use, "", rest)
        return
    roles = dict.fromkeys(
        role
        for need in needs.values()
        for name in need.parts
        for role, of in [_split(name)]
        if of == use
    )
    for role in roles:
        yield _trace(use, role, {r: n.parts.get(f"{role} {use}", 0.0) for r, n in needs.items()})


def _trace(use: str, role: str, values: Mapping[str, float]) -> Figure:
    name = f"{role} {use}".strip()
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(values),
        "x": [short(value / _GIB) for value in values.values()],
        "hovertext": [f"<b>{name}</b><br>{row}: {format_bytes(v)}" for row, v in values.items()],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {
            "color": use_colour(use),
            "line": {"width": 0.6, "color": "rgba(255, 255, 255, 0.75)"},
        },
    }


def _layout(kind: KindMemory, rows: Sequence[str]) -> Figure:
    limit, memory = kind.limit_bytes / _GIB, kind.memory_bytes / _GIB
    return {
        "barmode": "stack",
        "bargap": 0.3,
        "height": 70 + _BAR_HEIGHT * len(rows),
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": {"title": {"text": "GiB per device"}, "range": [0, short(memory * 1.02)]},
        "yaxis": {
            "type": "category",
            "range": [len(rows) - 0.5, -0.5],
            "dtick": 1,
            "automargin": True,
        },
        "shapes": [_line(limit, "dash"), _line(memory, "solid")],
    }


def _line(place: float, dash: str) -> Figure:
    return {
        "type": "line",
        "x0": short(place),
        "x1": short(place),
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": ALARM_COLOUR, "width": 1.5, "dash": dash},
    }


def _split(name: str) -> tuple[Role | str, str]:
    """`actor engine weights` is the use `engine weights` of the role `actor`."""
    role, _, use = name.partition(" ")
    return role, use
