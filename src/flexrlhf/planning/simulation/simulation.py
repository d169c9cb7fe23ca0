"""What a simulated run was like, and the measures that plans and reports take from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from flexrlhf.core.names import Role, Stage
from flexrlhf.core.timeline import SHARES, Share, Timeline
from flexrlhf.planning.simulation.activity import Activity
from flexrlhf.planning.simulation.critical_path import Causes, PathStep, path_to
from flexrlhf.planning.simulation.device_time import DeviceTime
from flexrlhf.planning.simulation.memory import (
    MemorySteps,
    MemoryUse,
    RoleMemory,
    memory_over_time,
    memory_use,
    peak_bytes,
)
from flexrlhf.planning.simulation.spans import device_timeline, group_timeline
from flexrlhf.planning.simulation.steady_state import Window
from flexrlhf.planning.workflow.graph import Graph, Task
from flexrlhf.planning.workflow.groups import DeviceGroup


@dataclass(frozen=True, slots=True)
class Finish:
    """The moment at which an iteration was finished."""

    iteration: int
    time_s: float
    by: int | None
    """Place of the activity whose end finished it; None for an iteration without any."""


@dataclass(frozen=True, repr=False)  # Without slots: measures are kept once they are asked for.
class Simulation:
    """Everything that was done on the virtual clock.

    What is "per iteration" is taken from the stretch `window`, which stands for the whole run:
    times are the differences between the moments at which iterations finish there, so that
    iterations that overlap are not counted twice.
    """

    graphs: tuple[Graph, ...]
    activities: tuple[Activity, ...]
    """In the order of starting."""
    finishes: tuple[Finish, ...]
    """Of the iterations, in order."""
    window: Window
    num_in_flight: int
    capacities: Mapping[str, float]
    """Of the shared links, in bytes/s."""
    link_loads: Mapping[str, tuple[tuple[float, float], ...]]
    """Per link the times at which its load changed, and the bytes/s from then on."""

    def __repr__(self) -> str:
        return (
            f"Simulation({len(self.finishes)} iterations, {len(self.activities)} activities, "
            f"{self.iteration_s:g} s per iteration)"
        )

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """The groups of all graphs."""
        return self.graphs[0].groups

    @property
    def makespan_s(self) -> float:
        """Seconds from the start to the last end, or to where the run was cut off."""
        return max((activity.end_s for activity in self.activities), default=0.0)

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration in the steady state: the window's length by its iterations."""
        return (self.window.end_s - self.window.start_s) / self.window.num_iterations

    @property
    def intervals_s(self) -> tuple[float, ...]:
        """Seconds from the finish before to that of each iteration of the window."""
        times_s = [
            finish.time_s
            for finish in self.finishes
            if self.window.first <= finish.iteration <= self.window.last
        ]
        return tuple(end - start for start, end in pairwise([self.window.start_s, *times_s]))

    def percentile_s(self, percent: float) -> float:
        """Returns the time within which so many of 100 iterations of the window are done."""
        return _percentile(self.intervals_s, percent)

    def task_percentiles_s(self, percent: float) -> dict[str, float]:
        """Returns the same for the tasks and transfers of each kind that the window finishes.

        Tasks are named by operation and role, as in `logprobs/actor`, transfers by what they carry.
        """
        seconds: dict[str, list[float]] = {}
        for item, _, start_s, end_s, _ in self.activities:
            if self.window.first <= item.iteration <= self.window.last:
                is_task = isinstance(item, Task)
                name = item.operation if is_task else item.kind
                if is_task and item.role is not None:
                    name = f"{name}/{item.role}"
                seconds.setdefault(name, []).append(end_s - start_s)
        return {name: _percentile(values, percent) for name, values in seconds.items()}

    @cached_property
    def timeline(self) -> Timeline:
        """One track per group; see `spans.group_timeline`.

        Groups that share devices have tracks of their own, so the shares of device time come from
        `shares` here, or from the timeline of the devices.
        """
        return group_timeline(self.graphs, self.activities)

    def device_timeline(self) -> Timeline:
        """Returns the timeline with one track per device."""
        return device_timeline(self.timeline, self.groups)

    def stage_s(self) -> dict[Share, float]:
        """Returns per stage the seconds in which any group worked on it, per iteration.

        Stages of a pipelined iteration overlap, so they may add up to more than it takes.
        """
        numbers = range(self.window.first, self.window.last + 1)
        by_iteration = [self.timeline.stage_seconds(number + 1) for number in numbers]
        return {
            stage: sum(seconds.get(stage, 0.0) for seconds in by_iteration) / len(by_iteration)
            for stage in SHARES
            if any(stage in seconds for seconds in by_iteration)
        }

    @cached_property
    def _device_time(self) -> DeviceTime:
        window = self.window
        return DeviceTime(self.groups, self.timeline.spans, window.start_s, window.end_s)

    def shares(self) -> dict[Share, float]:
        """Returns how the time of all devices is spent; see `DeviceTime.shares`."""
        return self._device_time.shares()

    def utilization(self) -> dict[int, float]:
        """Returns per device the part of the time in which it computes."""
        return self._device_time.utilization()

    def link_utilization(self) -> dict[str, float]:
        """Returns per shared link the part of its capacity that is used."""
        start_s, end_s = self.window.start_s, self.window.end_s
        return {
            link: _mean_load(self.link_loads[link], start_s, end_s) / capacity
            for link, capacity in self.capacities.items()
        }

    def critical_path(self, iteration: int | None = None) -> tuple[PathStep, ...]:
        """Returns the chain that determines when an iteration finishes, from the run's start on.

        Each step begins when the one before it ends, so the chain is as long as the run until then.

        Args:
            iteration: the one that ends the window, unless given.

        Raises:
            ValueError: that iteration was not finished.
        """
        number = self.window.last if iteration is None else iteration
        finish = next((f for f in self.finishes if f.iteration == number), None)
        if finish is None:
            raise ValueError(f"Iteration {number} was not finished.")
        if finish.by is None:
            return ()
        submitters = {
            later.iteration: earlier.by
            for later, earlier in zip(
                self.graphs[self.num_in_flight :], self.finishes, strict=False
            )
            if earlier.by is not None
        }
        graphs = {graph.iteration: graph for graph in self.graphs}
        return path_to(finish.by, self.activities, Causes(graphs, submitters, self.capacities))

    def peak_bytes(self) -> dict[int, dict[Stage, int]]:
        """Returns the most bytes held on each device in each stage that occurs there."""
        return peak_bytes(self.groups, self.activities)

    def memory_over_time(
        self, resident_bytes: Mapping[int, int] | None = None
    ) -> dict[int, MemorySteps]:
        """Returns the bytes held on each device as steps; see `memory.memory_over_time`."""
        return memory_over_time(self.groups, self.activities, resident_bytes or {})

    def memory_use(self, roles: Mapping[Role, RoleMemory]) -> MemoryUse:
        """Returns how much of what `roles` hold works, in the window.

        Raises:
            ValueError: no role holds anything.
        """
        window = self.window
        return memory_use(self.groups, self.activities, roles, window.start_s, window.end_s)


def _percentile(values: Sequence[float], percent: float) -> float:
    """The least value that is not below `percent` of 100 values."""
    if not 0 < percent <= 100:
        raise ValueError(f"The percentile {percent} is not in (0, 100].")
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def _mean_load(steps: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    """Bytes/s between two moments, of a load that changes in steps."""
    if not end_s > start_s:
        return 0.0
    num_bytes = sum(
        load * max(0.0, min(until_s, end_s) - max(from_s, start_s))
        for (from_s, load), (until_s, _) in pairwise([*steps, (end_s, 0.0)])
    )
    return num_bytes / (end_s - start_s)
