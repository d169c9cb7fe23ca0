"""Tasks of several groups on the same cores: the more of them run, the slower each goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Running:
    devices: int
    rest_s: float
    """Seconds that it would still take if its group alone were at work."""
    pace: float
    """Seconds of that which pass in a second."""


class SharedCores:
    """What runs at the moment, as a fluid.

    Args:
        slowdown: of work on so many devices at one time.
    """

    def __init__(self, slowdown: Callable[[int], float]) -> None:
        self._slowdown = slowdown
        self._running: dict[int, _Running] = {}
        self._now_s = 0.0

    def start(self, number: int, devices: int, seconds: float, now_s: float) -> dict[int, float]:
        """Starts a task and returns when everything that runs will now end.

        Args:
            number: of the task, not running yet.
            devices: of its group.
            seconds: that it takes if its group alone is at work.
            now_s: not before the last call.
        """
        self._go_on(now_s)
        self._running[number] = _Running(devices, seconds, 1.0)
        return self._ends()

    def end(self, number: int, now_s: float) -> dict[int, float]:
        """Ends a task and returns when everything else will now end."""
        self._go_on(now_s)
        del self._running[number]
        return self._ends()

    def _go_on(self, now_s: float) -> None:
        for task in self._running.values():
            task.rest_s = max(0.0, task.rest_s - task.pace * (now_s - self._now_s))
        self._now_s = now_s

    def _ends(self) -> dict[int, float]:
        busy = sum(task.devices for task in self._running.values())
        slowdown = self._slowdown(busy)
        for task in self._running.values():
            task.pace = self._slowdown(task.devices) / slowdown
        return {
            number: self._now_s + task.rest_s / task.pace for number, task in self._running.items()
        }
