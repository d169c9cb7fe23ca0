"""Combinations of the roles' options, best bound first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.placement.device_memory import alike_devices
from flexrlhf.planning.search.bounds import IterationBound, Times
from flexrlhf.planning.search.options import Option

_ROUNDING: Final = 1e-12
"""Part of a device's memory that counts as nothing, lest a bound be above what really fits."""


@dataclass(frozen=True, slots=True)
class SharedDevices:
    """Roles that meet on a device, and what they may fill together."""

    roles: tuple[Role, ...]
    limit_bytes: float
    """What weights, states and the work of one role may take."""


def shared_devices(
    cluster: Cluster,
    devices: Mapping[Role, tuple[int, ...]],
    calibration: Calibration,
    *,
    fill: float,
) -> list[SharedDevices]:
    """Returns which roles meet on a device, one entry for devices that are alike."""
    rest = 1 + calibration.fragmentation
    found = {
        SharedDevices(roles, (1 + _ROUNDING) * fill * memory / rest - calibration.held_bytes): None
        for roles, memory, _ in alike_devices(cluster, tuple(devices.items()))
    }
    return list(found)


@dataclass(frozen=True, slots=True)
class Combination:
    """One option for each role."""

    options: tuple[Option, ...]
    bound_s: float
    """No iteration of a plan with these options is shorter; infinite where they cannot fit."""
    stage_s: Times
    """What each role takes in each stage, with the largest passes for which they leave room."""

    @property
    def least_bytes(self) -> float:
        """What lies on a device of all roles, and what the hungriest adds at least."""
        resting = sum(option.resting_bytes for option in self.options)
        added = (option.least_bytes - option.resting_bytes for option in self.options)
        return resting + max(added, default=0.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option that fits beside the leanest options of the roles that it meets."""

    option: Option
    stage_s: Times
    """What it takes in each stage, at least, with the room that they leave."""
    busy_s: float
    """All stages together but for the installation of weights, which the bound leaves out."""


def candidates(
    options: Mapping[Role, Sequence[Option]], shared: Sequence[SharedDevices]
) -> dict[Role, list[Candidate]]:
    """Returns the options of each role that may fit, fastest first; none where one role has none.

    Those that cannot fit are left out of the leanest too, until none goes.
    """
    kept: dict[Role, list[Option]] = {role: list(held) for role, held in options.items()}
    while all(kept.values()):
        found: dict[Role, list[Candidate]] = {role: _fitting(role, kept, shared) for role in kept}
        if all(len(found[role]) == len(kept[role]) for role in kept):
            return found
        for role, held in found.items():
            kept[role] = [candidate.option for candidate in held]
    return {role: [] for role in kept}


def _fitting(
    role: Role, options: Mapping[Role, Sequence[Option]], shared: Sequence[SharedDevices]
) -> list[Candidate]:
    room = math.inf
    for devices in shared:
        if role in devices.roles:
            others = (options[other] for other in devices.roles if other != role)
            least = sum(min(option.resting_bytes for option in held) for held in others)
            room = min(room, devices.limit_bytes - least)
    found: list[Candidate] = []
    for option in options[role]:
        stage_s = option.times(room - option.resting_bytes)
        busy_s = sum(seconds for (_, stage), seconds in stage_s.items() if stage != "sync")
        if math.isfinite(busy_s):
            found.append(Candidate(option, stage_s, busy_s))
    return sorted(found, key=lambda candidate: candidate.busy_s)


class Combinations:
    """The combinations that may fit, in the order of their bounds.

    Where none may, there is one of the leanest options, to say what is lacking.

    A heap over neighbours goes through the candidates by the time of the busiest device, which
    grows with every candidate and is never more than the bound.

    Args:
        options: per role.
        shared: which of these roles meet on a device.
        bound: of an iteration; roles that have no options here take no time.
    """

    def __init__(
        self,
        options: Mapping[Role, Sequence[Option]],
        shared: Sequence[SharedDevices],
        bound: IterationBound,
    ) -> None:
        self._options = options
        self._candidates = tuple(map(tuple, candidates(options, shared).values()))
        index = {role: place for place, role in enumerate(options)}
        self._meetings = [[index[role] for role in devices.roles] for devices in shared]
        self._shared = shared
        self._bound = bound

    def __iter__(self) -> Iterator[Combination]:
        if not all(self._options.values()):
            return
        has_any = False
        if all(self._candidates):
            for combination in self._by_bound():
                has_any = True
                yield combination
        if not has_any:
            leanest = (min(held, key=lambda o: o.least_bytes) for held in self._options.values())
            yield Combination(tuple(leanest), math.inf, {})

    def _by_bound(self) -> Iterator[Combination]:
        first = tuple(0 for _ in self._candidates)
        heap = [(self._floor(first), first)]
        seen = {first}
        waiting: list[tuple[float, tuple[int, ...], Combination]] = []
        while heap:
            floor, places = heapq.heappop(heap)
            while waiting and waiting[0][0] <= floor:
                yield heapq.heappop(waiting)[2]
            if found := self._combination(places):
                heapq.heappush(waiting, (found.bound_s, places, found))
            for neighbour in self._neighbours(places):
                if neighbour not in seen:
                    seen.add(neighbour)
                    heapq.heappush(heap, (self._floor(neighbour), neighbour))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _neighbours(self, places: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for index, place in enumerate(places):
            if place + 1 < len(self._candidates[index]):
                yield (*places[:index], place + 1, *places[index + 1 :])

    def _floor(self, places: tuple[int, ...]) -> float:
        """The busiest device, if each role met only the leanest options."""
        held = [
            candidates[i].busy_s for candidates, i in zip(self._candidates, places, strict=True)
        ]
        return max(sum(held[index] for index in meeting) for meeting in self._meetings)

    def _combination(self, places: tuple[int, ...]) -> Combination | None:
        """The bound with the memory that the roles leave each other; None if they do not fit."""
        held = zip(self._candidates, places, strict=True)
        chosen = tuple(candidates[place].option for candidates, place in held)
        available = [math.inf] * len(chosen)
        for meeting, devices in zip(self._meetings, self._shared, strict=True):
            resting = sum(chosen[index].resting_bytes for index in meeting)
            for index in meeting:
                available[index] = min(available[index], devices.limit_bytes - resting)
        times: dict[tuple[Role, Stage], float] = {}
        for option, left in zip(chosen, available, strict=True):
            times |= option.times(left)
        bound_s = self._bound.seconds(times)
        return Combination(chosen, bound_s, times) if math.isfinite(bound_s) else None
