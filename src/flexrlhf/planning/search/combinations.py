"""Combinations of the roles' options, best bound first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.search.options import Option

Chain = Sequence[tuple[Role, Stage]]
"""Stages of roles that follow each other in every iteration."""


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
    on_device: dict[int, list[Role]] = {}
    for role, held in devices.items():
        for device in held:
            on_device.setdefault(device, []).append(role)
    found = {
        SharedDevices(
            tuple(roles),
            fill * cluster.device_type(device).memory_bytes / (1 + calibration.fragmentation)
            - calibration.held_bytes,
        ): None
        for device, roles in on_device.items()
    }
    return list(found)


@dataclass(frozen=True, slots=True)
class Combination:
    """One option for each role."""

    options: tuple[Option, ...]
    bound_s: float
    """No iteration of a plan with these options is shorter; infinite where they cannot fit."""
    stage_s: Mapping[tuple[Role, Stage], float]
    """What each role takes in each stage, at least."""


class Combinations:
    """The combinations that may fit, in the order of their bounds.

    Where the one that rests on least memory cannot fit, it comes last, to say what is lacking.

    The bound is the time that the busiest device has work, or that the longest chain takes,
    whichever is longer, with the memory that the roles leave each other. A heap over neighbours
    goes through the options by a floor without that limit, which grows with every option.

    Args:
        options: per role, fastest first.
        shared: which roles meet on a device.
        chains: none where iterations overlap.
    """

    def __init__(
        self,
        options: Mapping[Role, Sequence[Option]],
        shared: Sequence[SharedDevices],
        chains: Sequence[Chain],
    ) -> None:
        self._roles = tuple(options)
        self._options = tuple(tuple(held) for held in options.values())
        self._busy = tuple(tuple(option.busy_s for option in held) for held in self._options)
        index = {role: place for place, role in enumerate(self._roles)}
        self._meetings = [[index[role] for role in devices.roles] for devices in shared]
        self._shared = shared
        self._chains = chains

    def __iter__(self) -> Iterator[Combination]:
        if not all(self._options):
            return
        leanest = self._combination(tuple(map(_leanest, self._options)))
        if not self._may_fit():
            yield leanest
            return
        first = tuple(0 for _ in self._roles)
        heap = [(self._floor(first), first)]
        seen = {first}
        waiting: list[tuple[float, tuple[int, ...], Combination]] = []
        while heap:
            floor, places = heapq.heappop(heap)
            while waiting and waiting[0][0] <= floor:
                yield heapq.heappop(waiting)[2]
            found = self._combination(places)
            if math.isfinite(found.bound_s):
                heapq.heappush(waiting, (found.bound_s, places, found))
            for neighbour in self._neighbours(places):
                if neighbour not in seen:
                    seen.add(neighbour)
                    heapq.heappush(heap, (self._floor(neighbour), neighbour))
        while waiting:
            yield heapq.heappop(waiting)[2]
        if math.isinf(leanest.bound_s):
            yield leanest

    def _may_fit(self) -> bool:
        """Whether the least that rests and the least that any role adds fit together."""
        resting = [min(option.resting_bytes for option in held) for held in self._options]
        added = [min(map(_least_added, held)) for held in self._options]
        return all(
            sum(resting[index] for index in meeting) + max(added[index] for index in meeting)
            <= devices.limit_bytes
            for meeting, devices in zip(self._meetings, self._shared, strict=True)
        )

    def _neighbours(self, places: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for index, place in enumerate(places):
            if place + 1 < len(self._options[index]):
                yield (*places[:index], place + 1, *places[index + 1 :])

    def _floor(self, places: tuple[int, ...]) -> float:
        """The busiest device, if each role had all memory."""
        busy = [held[place] for held, place in zip(self._busy, places, strict=True)]
        return max(sum(busy[index] for index in meeting) for meeting in self._meetings)

    def _combination(self, places: tuple[int, ...]) -> Combination:
        chosen = tuple(held[place] for held, place in zip(self._options, places, strict=True))
        seconds = self._least_s(chosen)
        busy = [sum(seconds[option.role, stage] for stage in option.loads) for option in chosen]
        busiest = max(sum(busy[index] for index in meeting) for meeting in self._meetings)
        lengths = (sum(seconds.get(link, 0.0) for link in chain) for chain in self._chains)
        bound = max(busiest, *lengths) if self._chains else busiest
        return Combination(chosen, bound, seconds)

    def _least_s(self, chosen: tuple[Option, ...]) -> dict[tuple[Role, Stage], float]:
        """Seconds per role and stage with the memory that the roles leave each other."""
        available = [math.inf] * len(chosen)
        for meeting, devices in zip(self._meetings, self._shared, strict=True):
            resting = sum(chosen[index].resting_bytes for index in meeting)
            for index in meeting:
                available[index] = min(available[index], devices.limit_bytes - resting)
        return {
            (option.role, stage): load.least_s(left)
            for option, left in zip(chosen, available, strict=True)
            for stage, load in option.loads.items()
        }


def _leanest(options: Sequence[Option]) -> int:
    """The place of the option that rests on least memory."""
    return min(range(len(options)), key=lambda place: options[place].resting_bytes)


def _least_added(option: Option) -> float:
    """Bytes of the stage that adds most, with the smallest pass."""
    return max((load.working_bytes[0] for load in option.loads.values()), default=0.0)
