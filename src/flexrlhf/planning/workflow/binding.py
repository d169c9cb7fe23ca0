"""What a graph needs to know to run on a virtual clock: how long its tasks and transfers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flexrlhf.core.timeline import Attribute
from flexrlhf.planning.workflow.graph import Task, Transfer


@dataclass(frozen=True, slots=True)
class TaskTime:
    """How long a task occupies its group, and what it needs there."""

    compute_s: float
    communication_s: float = 0.0
    """Exposed collectives, after what overlaps with compute; they follow the compute."""
    peak_bytes: int = 0
    """Per device of the group while the task runs, everything that rests there included."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])

    @property
    def total_s(self) -> float:
        """Seconds from start to end."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True, slots=True)
class TransferTime:
    """What a transfer moves over which links; how long that takes depends on who shares them."""

    num_bytes: float
    """That the narrowest of its links carries."""
    links: tuple[str, ...] = ()
    """Shared links that it occupies at the same time; none: only the latency counts."""
    latency_s: float = 0.0

    def alone_s(self, capacities: Mapping[str, float]) -> float:
        """Returns the seconds that it takes if nothing shares its links of these bytes/s."""
        if not self.links:
            return self.latency_s
        return self.latency_s + self.num_bytes / min(capacities[link] for link in self.links)


class Durations(Protocol):
    """Times of the tasks and transfers of one plan."""

    @property
    def links(self) -> Mapping[str, float]:
        """Capacity of every shared link, in bytes/s."""
        ...

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` occupies its group."""
        ...

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` moves."""
        ...
