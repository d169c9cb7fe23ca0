"""What the scheduler is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.planning.workflow.graph import Graph, Task, Transfer


@dataclass(frozen=True, slots=True)
class GraphSubmitted:
    """The next iteration may begin as far as weights and groups allow."""

    graph: Graph


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


Event = GraphSubmitted | TaskFinished | TransferFinished | TaskFailed | TransferFailed


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
