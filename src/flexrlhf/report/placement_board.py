"""Which devices are drawn, and which role on which of them: nodes that are alike stand once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from flexrlhf.core.names import SHADOWS, Role, in_order, kind_of
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.placement.plan import Plan

_MOST_SLOTS: Final = 32
"""Devices drawn one by one; of more, those that are alike and side by side are drawn as one."""


_ORIGINALS: Final[Mapping[Role, Role]] = {shadow: role for role, shadow in SHADOWS.items()}


@dataclass(frozen=True, slots=True)
class Slot:
    """A drawn device, which may stand for several."""

    count: int
    """Of one node."""
    first: int
    """Number of the first of them, in the first node."""
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class Board:
    """A drawn node, which may stand for several that are alike."""

    nodes: tuple[Node, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A role on neighbouring slots of a board: columns `start` to `stop`, the latter left out."""

    start: int
    stop: int

    @property
    def middle(self) -> int:
        """The column in the middle."""
        return (self.start + self.stop - 1) // 2


@dataclass(frozen=True, slots=True)
class Sync:
    """A row with the arrow from a trained role to its shadow."""

    shadow: Role


def rows_of(plan: Plan) -> Iterator[Role | Sync]:
    """The drawn rows: each shadow stands below its original, with the arrow between."""
    for role in in_order(plan.placement):
        if role in _ORIGINALS and _ORIGINALS[role] in plan.placement:
            continue
        yield role
        shadow = SHADOWS.get(role)
        if shadow in plan.placement and shadow is not None:
            yield Sync(shadow)
            yield shadow


def is_shadow(role: Role) -> bool:
    """Whether a role is drawn dashed."""
    return kind_of(role) in _ORIGINALS


def arrow_of(sync: Sync, boards: Sequence[Board]) -> tuple[Run, Run] | None:
    """Returns the nearest two bars of a trained role and its shadow; None if one has none."""
    sources, targets = runs_of(_ORIGINALS[sync.shadow], boards), runs_of(sync.shadow, boards)
    pairs = [(source, target) for source in sources for target in targets]
    return min(pairs, key=lambda pair: abs(pair[0].middle - pair[1].middle), default=None)


def boards_of(plan: Plan, cluster: Cluster) -> tuple[Board, ...]:
    """Returns the drawn nodes, in the order of the first that each stands for."""
    held = _roles_by_device(plan)
    alike: dict[tuple[str, tuple[frozenset[Role], ...]], list[Node]] = {}
    for node in cluster.nodes:
        key = node.pool, tuple(held.get(device, frozenset()) for device in node.devices)
        alike.setdefault(key, []).append(node)
    joins = sum(len(roles) for _, roles in alike) > _MOST_SLOTS
    return tuple(
        Board(tuple(nodes), tuple(_slots(nodes[0], roles, joins=joins)))
        for (_, roles), nodes in alike.items()
    )


def runs_of(role: Role, boards: Sequence[Board]) -> list[Run]:
    """Returns where a role is drawn; columns count from 0, with one free between two boards."""
    found: list[Run] = []
    column = 0
    for board in boards:
        for is_held, group in groupby(board.slots, key=lambda slot: role in slot.roles):
            length = len(list(group))
            if is_held:
                found.append(Run(column, column + length))
            column += length
        column += 1
    return found


def _slots(node: Node, roles: Sequence[frozenset[Role]], *, joins: bool) -> Iterator[Slot]:
    places = zip(node.devices, roles, strict=True)
    if not joins:
        yield from (Slot(1, device, held) for device, held in places)
        return
    for held, group in groupby(places, key=lambda place: place[1]):
        devices = [device for device, _ in group]
        yield Slot(len(devices), devices[0], held)


def _roles_by_device(plan: Plan) -> Mapping[int, frozenset[Role]]:
    held: dict[int, set[Role]] = {}
    for role, placed in plan.placement.items():
        for device in placed.devices:
            held.setdefault(device, set()).add(role)
    return {device: frozenset(roles) for device, roles in held.items()}
