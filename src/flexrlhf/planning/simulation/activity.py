"""One task or transfer that a simulation has carried out."""

from __future__ import annotations

from typing import NamedTuple

from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Task, Transfer


class Activity(NamedTuple):
    """What was done from `start_s` to `end_s`.

    A run that is watched only for a while cuts off what still goes on at the end.
    """

    item: Task | Transfer
    time: TaskTime | TransferTime
    start_s: float
    end_s: float
    cause: int | None
    """Place of the activity with whose end it started; None where it could start at once."""
