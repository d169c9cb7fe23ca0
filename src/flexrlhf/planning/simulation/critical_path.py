"""The chain of tasks and transfers that determines when a run ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flexrlhf.planning.simulation.activity import Activity
from flexrlhf.planning.workflow.binding import TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer

Reason = Literal["start", "data", "weights", "devices", "iteration"]

_ROUNDING: Final = 1e-9
"""Part of a transfer's time that is no waiting."""


@dataclass(frozen=True, slots=True)
class PathStep:
    """One link of the chain; it began when the one before it ended."""

    activity: Activity
    waited_for: Reason
    """Why it did not begin before. `start`: it began with the run. `data`: it needs what the step
    before made. `weights`: it needs the version that the step before put in place. `devices`: the
    step before held its devices. `iteration`: only then was its iteration submitted."""
    link_s: float = 0.0
    """Seconds by which it took longer because other transfers shared its links."""

    @property
    def name(self) -> str:
        """What was done."""
        return self.activity.item.name

    @property
    def iteration(self) -> int:
        """The iteration it was done for, from 0."""
        return self.activity.item.iteration

    @property
    def start_s(self) -> float:
        """When it began."""
        return self.activity.start_s

    @property
    def end_s(self) -> float:
        """When it ended, and the next step began."""
        return self.activity.end_s


@dataclass(frozen=True, slots=True)
class Causes:
    """What is needed to tell why an activity did not start before.

    Args:
        graphs: of the iterations, by number.
        submitters: per iteration the place of the activity whose end let it be submitted; absent
            where it was there from the start.
        capacities: of the links, in bytes/s.
    """

    graphs: Mapping[int, Graph]
    submitters: Mapping[int, int]
    capacities: Mapping[str, float]


def path_to(place: int, activities: Sequence[Activity], causes: Causes) -> tuple[PathStep, ...]:
    """Returns the chain from the beginning of the run to the end of one activity.

    Args:
        place: of the activity that ends the chain.
        activities: of the run, in the order of starting.
        causes: of their starting.
    """
    waits_for = {number: graph.waits_for() for number, graph in causes.graphs.items()}
    return tuple(
        PathStep(
            activities[place],
            _reason(place, activities, causes, waits_for),
            _link_wait_s(activities[place], causes.capacities),
        )
        for place in reversed(list(_backwards(place, activities)))
    )


def _backwards(place: int | None, activities: Sequence[Activity]) -> Iterator[int]:
    while place is not None:
        yield place
        place = activities[place].cause


def _reason(
    place: int,
    activities: Sequence[Activity],
    causes: Causes,
    waits_for: Mapping[int, Mapping[str, tuple[str, ...]]],
) -> Reason:
    item, cause = activities[place].item, activities[place].cause
    if cause is None:
        return "start"
    before = activities[cause].item
    if causes.submitters.get(item.iteration) == cause:
        return "iteration"
    if before.iteration == item.iteration and before.name in waits_for[item.iteration][item.name]:
        return "data"
    assert isinstance(item, Task), "a transfer waits for nothing but its sources"
    return "weights" if _gives_weights(before, item) else "devices"


def _gives_weights(before: Task | Transfer, task: Task) -> bool:
    """Whether the end of `before` put the version in place that `task` needs."""
    if not isinstance(before, Task):
        return False
    if task.weights == "installed":
        return before.operation == "install" and before.group == task.group
    if task.weights == "trained":
        is_training = before.stage == "train" and before.role == task.role
        return is_training and task.weight_version == before.iteration + 1
    return False


def _link_wait_s(activity: Activity, capacities: Mapping[str, float]) -> float:
    time = activity.time
    if not isinstance(time, TransferTime) or not time.links:
        return 0.0
    alone_s = time.alone_s(capacities)
    took_s = activity.end_s - activity.start_s
    return took_s - alone_s if took_s > alone_s * (1 + _ROUNDING) else 0.0
