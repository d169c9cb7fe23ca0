"""Which weights are where, and so which tasks may start: admission by staleness."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from typing import TypeVar

from flexrlhf.core.names import Role
from flexrlhf.planning.workflow.graph import Graph, Task

_Key = TypeVar("_Key")


class WeightVersions:
    """The version installed in each group and the version that each trained role has reached.

    A task that generates or scores with installed weights takes its version or a newer one. So that
    a newer one does not slip in halfway, an install waits for the tasks in flight that need an
    older version, and for older installs. With `IterationShape.num_in_flight` iterations submitted
    every task therefore meets exactly the version it names, whatever the timing.

    Args:
        version: of all weights at the start.
    """

    def __init__(self, version: int) -> None:
        self._start = version
        self._installed: dict[str, int] = {}
        self._trained: dict[Role, int] = {}
        self._unfinished: dict[str, Counter[int]] = defaultdict(Counter)
        """Per group and version: tasks in flight that need or install that version."""
        self._training: Counter[tuple[Role, int]] = Counter()
        """Unfinished training tasks per role and iteration."""

    def installed(self, group: str) -> int:
        """Returns the version that `group` generates and scores with."""
        return self._installed.get(group, self._start)

    def trained(self, role: Role) -> int:
        """Returns the version that training has reached."""
        return self._trained.get(role, self._start)

    def submit(self, graph: Graph, done: AbstractSet[str] = frozenset()) -> None:
        """Takes the needs of a graph into account, without the tasks that are done."""
        for task in graph.tasks:
            if task.name in done:
                continue
            if _is_counted(task):
                self._unfinished[task.group][_version(task)] += 1
            if task.stage == "train" and task.role is not None:
                self._training[task.role, task.iteration] += 1

    def admits(self, task: Task) -> bool:
        """Whether the weights of `task` are there, and an install overwrites no needed ones."""
        if task.operation == "install":
            return min(self._unfinished[task.group]) >= _version(task)
        weights = task.weights
        if weights == "installed":
            return self.installed(task.group) >= _version(task)
        if weights == "trained" and task.role is not None:
            return self.trained(task.role) == task.weight_version
        return True

    def finish(self, task: Task) -> None:
        """Takes note of what a finished task did to the versions."""
        if task.operation == "install":
            self._installed[task.group] = _version(task)
        if _is_counted(task):
            _take_one(self._unfinished[task.group], _version(task))
        if task.stage == "train" and task.role is not None:
            key = (task.role, task.iteration)
            _take_one(self._training, key)
            if key not in self._training:
                self._trained[task.role] = task.iteration + 1


def _is_counted(task: Task) -> bool:
    return task.operation == "install" or task.weights == "installed"


def _version(task: Task) -> int:
    if task.weight_version is None:
        raise ValueError(f"{task.name!r} names no weight version.")
    return task.weight_version


def _take_one(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if counts[key] == 0:
        del counts[key]
