"""The choices of roles that share devices, where other roles have devices of their own.

What such a pool hands to the rest of the plan is how long its tasks take. So of all its
combinations only those count that no other beats: in every stage where all roles sit on the same
devices and so work in turn, else in every task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from flexrlhf.core.names import Role
from flexrlhf.planning.search.bounds import Times
from flexrlhf.planning.search.combinations import Combination
from flexrlhf.planning.search.options import Option


class PoolFront:
    """The choices of a pool of which none beats another in everything, found as far as asked for.

    Args:
        combinations: of the pool's options, in the order of their bounds.
        is_one_group: whether all roles sit on the same devices.
    """

    def __init__(
        self,
        combinations: Iterable[Combination],
        *,
        is_one_group: bool,
    ) -> None:
        self.choices: list[Combination] = []
        self.least: Combination | None = None
        """The combination that needs least memory, where none fits."""
        self._times: list[dict[object, float]] = []
        self._combinations = iter(combinations)
        self._next = next(self._combinations, None)
        self._is_one_group = is_one_group

    def find_first(self) -> None:
        """Looks until there is a choice or nothing is left."""
        while not self.choices and self._next is not None:
            self._look_at(self._next)

    def extend(self, limit_s: float) -> None:
        """Looks at all combinations whose bound is below `limit_s`; without one at whatever is."""
        while self._next is not None and self._next.bound_s < limit_s:
            self._look_at(self._next)
        if math.isinf(limit_s):
            self.find_first()

    def _look_at(self, combination: Combination) -> None:
        self._next = next(self._combinations, None)
        if math.isinf(combination.bound_s):
            self.least = combination
        elif not self._beats(combination.stage_s):
            self._add(combination)

    def _beats(self, times: Times) -> bool:
        """Whether a choice takes at most these times in every task."""
        others = self._compared(times)
        return any(_is_at_most(held, others) for held in self._times)

    def _add(self, choice: Combination) -> None:
        """Takes in a choice and drops those that it beats."""
        times = self._compared(choice.stage_s)
        kept = [
            (old, held)
            for old, held in zip(self.choices, self._times, strict=True)
            if not _is_at_most(times, held)
        ]
        self.choices = [*(old for old, _ in kept), choice]
        self._times = [*(held for _, held in kept), times]

    def _compared(self, times: Times) -> dict[object, float]:
        """What is compared: seconds per stage of a group, else per role and stage."""
        found: dict[object, float] = {}
        for (role, stage), seconds in times.items():
            key = stage if self._is_one_group else (role, stage)
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
    """Returns the combination that needs less memory."""
    if best is None:
        return other
    return min(best, other, key=lambda combination: combination.least_bytes)


def joined(
    choices: Sequence[Combination], roles: Iterable[Role]
) -> tuple[tuple[Option, ...], Times]:
    """Returns the options of all pools in the order of `roles`, and their times together."""
    options = {option.role: option for choice in choices for option in choice.options}
    times = {key: value for choice in choices for key, value in choice.stage_s.items()}
    return tuple(options[role] for role in roles), times


def _is_at_most(times: Mapping[object, float], others: Mapping[object, float]) -> bool:
    return all(value <= others.get(key, 0.0) for key, value in times.items() if value)
