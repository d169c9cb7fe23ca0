"""Collects the tasks of a graph, and joins them by an edge inside a group or a transfer between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexrlhf.core.names import Role
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup


class GraphBuilder:
    """A graph in the making.

    Args:
        iteration: of every task.
        groups: of the plan.
    """

    def __init__(self, iteration: int, groups: tuple[DeviceGroup, ...]) -> None:
        self.iteration = iteration
        self._groups = groups
        self._tasks: list[Task] = []
        self._transfers: list[Transfer] = []
        self._after: dict[str, list[str]] = {}

    def add(self, task: Task, after: Iterable[Task] = ()) -> Task:
        """Adds a task that waits for others of its group, and returns it."""
        self._tasks.append(task)
        for earlier in after:
            self._wait(task, earlier)
        return task

    def hand_over(self, sources: Sequence[Task], targets: Sequence[Task], label: str) -> None:
        """Lets every target wait for every source.

        Between two groups the results of all sources in one move together to all targets in the
        other, as one experience transfer.

        Args:
            sources: tasks whose results are needed.
            targets: tasks that need them.
            label: what moves, as the transfer's name says it.
        """
        for source_group, given in _by_group(sources).items():
            for target_group, taken in _by_group(targets).items():
                if source_group == target_group:
                    for target in taken:
                        for source in given:
                            self._wait(target, source)
                else:
                    self._transfers.append(
                        Transfer(
                            name=f"{label}/{source_group}->{target_group}",
                            iteration=self.iteration,
                            kind="experience",
                            source_group=source_group,
                            target_group=target_group,
                            sources=tuple(task.name for task in given),
                            targets=tuple(task.name for task in taken),
                        )
                    )

    def move_weights(self, publish: Task, install: Task, roles: tuple[Role, ...]) -> None:
        """Joins the two ends of a sync by one transfer of the weights of `roles`."""
        self._transfers.append(
            Transfer(
                name=f"weights/{publish.group}->{install.group}",
                iteration=self.iteration,
                kind="weights",
                source_group=publish.group,
                target_group=install.group,
                sources=(publish.name,),
                targets=(install.name,),
                roles=roles,
            )
        )

    def graph(self) -> Graph:
        """Returns what was collected."""
        after = {name: tuple(waited) for name, waited in self._after.items()}
        return Graph(
            self.iteration, self._groups, tuple(self._tasks), tuple(self._transfers), after
        )

    def _wait(self, task: Task, earlier: Task) -> None:
        waited = self._after.setdefault(task.name, [])
        if earlier.name not in waited:
            waited.append(earlier.name)


def _by_group(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    by_group: dict[str, list[Task]] = {}
    for task in tasks:
        by_group.setdefault(task.group, []).append(task)
    return by_group
