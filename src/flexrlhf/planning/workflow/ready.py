"""Tasks that wait only for their weights and their group, in a stated order."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final, NamedTuple

from flexrlhf.core.names import STAGES, Role
from flexrlhf.planning.workflow.graph import Operation, Task

_LATEST_FIRST: Final = {stage: -place for place, stage in enumerate(STAGES)}


class _Entry(NamedTuple):
    """Sorts by iteration, then the later stage first, then the place in the graph."""

    iteration: int
    stage: int
    position: int
    task: Task


_Need = tuple[str, Operation, Role | None, int | None]
"""What decides whether a task may start: group, operation, role and weight version. Tasks that
agree in it may or may not alike."""


class ReadyTasks:
    """The tasks in queues by what they need, so that only the heads are ever looked at."""

    def __init__(self) -> None:
        self._queues: dict[_Need, list[_Entry]] = {}

    def add(self, task: Task, position: int) -> None:
        """Adds a task that stands at `position` in its graph."""
        entry = _Entry(task.iteration, _LATEST_FIRST[task.stage], position, task)
        bisect.insort(self._queues.setdefault(_need(task), []), entry)

    def heads(self) -> list[Task]:
        """Returns the first task of each need, in order.

        Once one of them has started, its group is at work, so nothing behind it could start.
        """
        heads = [queue[0] for queue in self._queues.values()]
        heads.sort()
        return [entry.task for entry in heads]

    def remove(self, head: Task) -> None:
        """Takes away a task that `heads` returned."""
        need = _need(head)
        queue = self._queues[need]
        del queue[0]
        if not queue:
            del self._queues[need]

    def __iter__(self) -> Iterator[Task]:
        return (entry.task for queue in self._queues.values() for entry in queue)


def _need(task: Task) -> _Need:
    return task.group, task.operation, task.role, task.weight_version
