"""What the scheduler is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.planning.workflow.graph import Graph, Task, Transfer


@dataclass(frozen=True, slots=True)
class GraphSubmitted:
    """The next iteration may begin as far as weights and groups allow."""

    graph: Graph
    done: frozenset[str] = frozenset()
    """Tasks whose results are there already, each with all tasks that it waits for."""


@dataclass(frozen=True, slots=True)
class BarriersHeld:
    """From an iteration on no barrier starts, and so nothing behind one, until another such event.

    What comes before the barriers goes on. A checkpoint is written meanwhile: it holds one version
    of all trained weights, and what was generated ahead with earlier ones.
    """

    first_iteration: int | None
    """None: no barrier is held."""


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A started task is done."""

    task_name: str
    iteration: int


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """Everything of a started transfer has arrived."""

    transfer_name: str
    iteration: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A started task will never be done."""

    task_name: str
    iteration: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A started transfer will never arrive."""

    transfer_name: str
    iteration: int
    reason: str


Event = (
    GraphSubmitted | BarriersHeld | TaskFinished | TransferFinished | TaskFailed | TransferFailed
)


@dataclass(frozen=True, slots=True)
class StartTask:
    """The task's group is to begin it now; it is that group's only task until it ends."""

    task: Task


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """The transfer is to begin now; it occupies no group."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class FinishIteration:
    """Everything of the iteration is done; iterations finish in order."""

    iteration: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """Something failed: nothing more will be started. Comes once."""

    reason: str


Action = StartTask | StartTransfer | FinishIteration | StopRun
