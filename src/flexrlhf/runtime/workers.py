"""The port between executor and workers: all workers of a run, whatever processes they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flexrlhf.core.errors import ConfigError, RunFailed
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.measurements import Measurements


@dataclass(frozen=True, slots=True)
class Stint:
    """What one worker did of a task or transfer."""

    track: str
    """Of the timeline: the worker's device."""
    start_s: float
    end_s: float
    measurements: Measurements = field(default_factory=Measurements)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task or transfer that ended on all its workers, or failed on one."""

    item: Task | Transfer
    stints: Sequence[Stint]
    error: BaseException | None = None


class Workers(Protocol):
    """Carries out tasks, transfers and calls on the workers of one run."""

    @property
    def tracks(self) -> tuple[str, ...]:
        """The track of every worker, in the order of devices."""
        ...

    def start(self, item: Task | Transfer) -> None:
        """Starts a task on its group, which must be idle, or a transfer beside it."""
        ...

    def collect(self, deadline_s: float) -> Outcome:
        """Waits for whatever ends next; raises WorkerLost after `deadline_s` seconds."""
        ...

    def finish(self, iteration: int) -> None:
        """Nothing that was made in `iteration` is needed any more."""
        ...

    def ask(
        self, method: str, *arguments: Any, deadline_s: float, beside: bool = False
    ) -> list[Any]:
        """Runs a method on every worker; one answer each, in order of devices.

        Args:
            method: its name.
            arguments: of the method.
            deadline_s: the longest that a worker may take.
            beside: while a task runs, if workers can do that; else between tasks.
        """
        ...

    def close(self) -> None:
        """Stops the workers."""
        ...


def failure_in_run(error: BaseException) -> BaseException:
    """Returns the error for a run that has begun: wrong input is then a failed run."""
    if isinstance(error, ConfigError):
        failure = RunFailed(error.wrong, error.right, error.do)
        failure.__cause__ = error
        return failure
    return error
