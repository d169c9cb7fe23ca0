"""The task graph of one iteration, as a value that scheduler, simulator and executor share.

A graph knows operations, groups and weight versions; it does not know seconds, bytes or tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from graphlib import TopologicalSorter
from typing import Any, Final, Literal

from flexrlhf.core.names import SHADOWS, Role, Stage, TransferClass
from flexrlhf.planning.workflow.groups import DeviceGroup

Operation = Literal[
    "generate",
    "logprobs",
    "values",
    "rewards",
    "prepare",
    "advantage",
    "forward",
    "forward_backward",
    "optimizer_step",
    "publish",
    "install",
]
Weights = Literal["installed", "trained"]

_SHADOW_ROLES: Final = frozenset(SHADOWS.values())


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one group."""

    name: str
    """Unique in its graph; every iteration of a run uses the same names."""
    iteration: int
    stage: Stage
    operation: Operation
    group: str
    role: Role | None = None
    """None where the work concerns several roles: barriers, `publish`, `install`."""
    micro_batch: int | None = None
    """Of the rollout in `generate` and `score`, of the mini-batch in `train`."""
    mini_batch: int | None = None
    epoch: int | None = None
    weight_version: int | None = None
    """The version it needs; the version that `publish` and `install` make available; None for
    work that depends on no trained weights."""
    is_barrier: bool = False
    """It needs the whole batch."""

    @property
    def weights(self) -> Weights | None:
        """Whose version it needs: the one installed in its group, or its role's own, as trained."""
        if self.weight_version is None or self.operation in ("publish", "install"):
            return None
        is_served = self.operation == "generate" or self.role in _SHADOW_ROLES
        return "installed" if is_served else "trained"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One movement from a group to another; it starts when all its sources are done."""

    name: str
    iteration: int
    kind: TransferClass
    source_group: str
    target_group: str
    sources: tuple[str, ...]
    """Tasks whose results move."""
    targets: tuple[str, ...]
    """Tasks that wait for them."""
    roles: tuple[Role, ...] = ()
    """The trained roles whose weights move; empty for experience."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything that one iteration does, and what waits for what.

    The order of `tasks` is the order in which a single group would do them.

    Raises:
        ValueError: a name is unknown or used twice, an iteration differs, or there is a cycle.
    """

    iteration: int
    groups: tuple[DeviceGroup, ...]
    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...] = ()
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The tasks that a task waits for inside its group; transfers wait for their sources and are
    waited for by their targets besides."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_transfers()
        if not self._stands_in_order():
            TopologicalSorter(self.waits_for()).prepare()

    def waits_for(self) -> dict[str, tuple[str, ...]]:
        """Returns for every task and transfer the names of what must be done before it starts."""
        waits = {task.name: list(self.after.get(task.name, ())) for task in self.tasks}
        for transfer in self.transfers:
            for target in transfer.targets:
                waits[target].append(transfer.name)
            waits[transfer.name] = list(transfer.sources)
        return {name: tuple(names) for name, names in waits.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns the graph as JSON values; keys that do not apply are absent."""
        return {
            "iteration": self.iteration,
            "groups": [asdict(group) for group in self.groups],
            "tasks": [_without_none(asdict(task)) for task in self.tasks],
            "transfers": [asdict(transfer) for transfer in self.transfers],
            "after": {name: list(names) for name, names in self.after.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Graph:
        """Returns the graph that `to_json` wrote."""
        return cls(
            iteration=document["iteration"],
            groups=tuple(DeviceGroup(**_tupled(group)) for group in document["groups"]),
            tasks=tuple(Task(**task) for task in document["tasks"]),
            transfers=tuple(Transfer(**_tupled(transfer)) for transfer in document["transfers"]),
            after=_tupled(document["after"]),
        )

    def _check_names(self) -> None:
        names = Counter(item.name for item in (*self.tasks, *self.transfers))
        twice = [name for name, count in names.items() if count > 1]
        tasks = {task.name for task in self.tasks}
        named = (*self.after, *(name for waited in self.after.values() for name in waited))
        unknown = [name for name in named if name not in tasks]
        groups = {group.name for group in self.groups}
        homeless = [task.name for task in self.tasks if task.group not in groups]
        items = (*self.tasks, *self.transfers)
        strangers = [item.name for item in items if item.iteration != self.iteration]
        _refuse(twice, "used twice")
        _refuse(unknown, "no task of this graph")
        _refuse(homeless, "in a group that the graph lacks")
        _refuse(strangers, f"not of iteration {self.iteration}")

    def _check_transfers(self) -> None:
        group_of = {task.name: task.group for task in self.tasks}
        _refuse(
            [
                transfer.name
                for transfer in self.transfers
                if {group_of.get(name) for name in transfer.sources} != {transfer.source_group}
                or {group_of.get(name) for name in transfer.targets} != {transfer.target_group}
            ],
            "a transfer whose sources or targets are not tasks of its groups",
        )

    def _stands_in_order(self) -> bool:
        """Whether every task stands behind all that it waits for, so that there is no cycle."""
        places = {task.name: place for place, task in enumerate(self.tasks)}
        return all(
            places[earlier] < places[name]
            for name, waited in self.after.items()
            for earlier in waited
        ) and all(
            max(places[name] for name in transfer.sources)
            < min(places[name] for name in transfer.targets)
            for transfer in self.transfers
        )


def _refuse(names: Iterable[str], fault: str) -> None:
    for name in names:
        raise ValueError(f"{name!r} is {fault}.")


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON lists as tuples."""
    return {
        key: tuple(value) if isinstance(value, list | tuple) else value  # type: ignore[arg-type]
        for key, value in values.items()
    }
