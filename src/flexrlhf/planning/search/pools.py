"""The choices of roles that share devices, where other roles have devices of their own.

What such a pool hands to the rest of the plan is how long its tasks take. So of all its
combinations only those count that no other beats: in every stage where all roles sit on the same
devices and so work in turn, else in every task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.search.combinations import Combination
from flexrlhf.planning.search.options import Option

Times = Mapping[tuple[Role, Stage], float]


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """One option for each role of a pool, with the times that it really has there."""

    options: tuple[Option, ...]
    stage_s: Times


@dataclass(slots=True)
class PoolFront:
    """The choices of a pool of which none beats another in everything."""

    is_one_group: bool
    """Whether all roles sit on the same devices."""
    choices: list[PoolChoice] = field(default_factory=list["PoolChoice"])
    least: Combination | None = None
    """The combination that rests on least memory, where none fits."""
    _held: list[dict[object, float]] = field(default_factory=list[dict[object, float]])

    def beats(self, times: Times) -> bool:
        """Whether a choice takes at most these times in every task."""
        others = self._compared(times)
        return any(_is_at_most(held, others) for held in self._held)

    def add(self, choice: PoolChoice) -> None:
        """Takes in a choice and drops those that it beats."""
        times = self._compared(choice.stage_s)
        kept = [
            (old, held)
            for old, held in zip(self.choices, self._held, strict=True)
            if not _is_at_most(times, held)
        ]
        self.choices = [*(old for old, _ in kept), choice]
        self._held = [*(held for _, held in kept), times]

    def _compared(self, times: Times) -> dict[object, float]:
        """What is compared: seconds per stage of a group, else per role and stage."""
        found: dict[object, float] = {}
        for (role, stage), seconds in times.items():
            key = stage if self.is_one_group else (role, stage)
            found[key] = found.get(key, 0.0) + seconds
        return found


def pools_of(devices: Mapping[Role, tuple[int, ...]]) -> list[tuple[Role, ...]]:
    """Returns the roles that are joined by common devices, directly or through others."""
    pools: list[tuple[list[Role], set[int]]] = []
    for role, held in devices.items():
        joined = [pool for pool in pools if not pool[1].isdisjoint(held)]
        others = [pool for pool in pools if pool[1].isdisjoint(held)]
        roles: list[Role] = [member for pool in joined for member in pool[0]]
        union = set(held).union(*(pool[1] for pool in joined))
        pools = [*others, ([*roles, role], union)]
    return [tuple(roles) for roles, _ in pools]


def smaller(best: Combination | None, other: Combination) -> Combination:
    """Returns the combination that rests on less memory."""
    if best is None:
        return other
    return min(best, other, key=lambda c: sum(option.resting_bytes for option in c.options))


def joined(
    choices: Sequence[PoolChoice], roles: Iterable[Role]
) -> tuple[tuple[Option, ...], Times]:
    """Returns the options of all pools in the order of `roles`, and their times together."""
    options = {option.role: option for choice in choices for option in choice.options}
    times = {key: value for choice in choices for key, value in choice.stage_s.items()}
    return tuple(options[role] for role in roles), times


def _is_at_most(times: Mapping[object, float], others: Mapping[object, float]) -> bool:
    return all(value <= others.get(key, 0.0) for key, value in times.items() if value)
