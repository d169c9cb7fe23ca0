"""The side of a program that is timed: it works when it is told to, and says what it did.

Plain Python, since every program runs it in its own environment. A line that comes in is a turn; a
line that goes out is a JSON object. Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def assignment() -> dict[str, Any]:
    """Returns what this program was told on its command line: the job, its folder, settings."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


class Turns:
    """Counts iterations, and waits between turns.

    The first turn is not timed: memory is made and code compiled in it.

    Args:
        iterations: of a turn.
        packages: whose versions are told.
    """

    def __init__(self, iterations: int, packages: tuple[str, ...]) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._iterations = iterations
        self._packages = packages
        self._done = self._tokens = self._steps = 0
        self._reckoned_s = 0.0
        self._rewards: list[float] = []
        self._began_s: float | None = None

    def step(self) -> None:
        """Counts an optimiser step."""
        self._steps += 1

    def end_iteration(
        self, tokens: int, *, reckoned_s: float = 0.0, reward: float | None = None
    ) -> None:
        """Counts an iteration; at the end of a turn, tells of it and waits for the next.

        Args:
            tokens: that it made.
            reckoned_s: what it would have taken, where that is reckoned and not done.
            reward: mean of its answers, where answers are rewarded.

        Raises:
            SystemExit: there is none.
        """
        self._done += 1
        self._tokens += tokens
        self._reckoned_s += reckoned_s
        self._rewards += [] if reward is None else [reward]
        if self._done == self._iterations:
            self._end_turn()

    def _end_turn(self) -> None:
        seconds = 0.0  # of a first turn
        if self._began_s is not None:
            seconds = self._reckoned_s or time.perf_counter() - self._began_s
        facts: dict[str, Any] = {
            "seconds": seconds,
            "tokens": self._tokens,
            "steps": self._steps,
            "peak_bytes": peak_bytes(),
            "rewards": self._rewards,
        }
        if self._began_s is None:
            facts["versions"] = {name: importlib.metadata.version(name) for name in self._packages}
        self._out.write(json.dumps(facts) + "\n")
        self._out.flush()
        if not sys.stdin.readline():
            raise SystemExit(0)
        self._done = self._tokens = self._steps = 0
        self._reckoned_s = 0.0
        self._rewards = []
        self._began_s = time.perf_counter()


def count_steps(turns: Turns) -> None:
    """Counts the optimiser steps of this process, of the first of its optimisers where more train.

    PPO trains actor and critic with one optimiser in one program and with two in another.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first: list[int] = []

    def count(optimizer: Any, arguments: Any, keywords: Any) -> None:
        del arguments, keywords
        first[:] = first or [id(optimizer)]
        if id(optimizer) == first[0]:
            turns.step()

    register_optimizer_step_post_hook(count)


def peak_bytes() -> int:
    """Returns the most memory that this process and those that it started have held."""
    return sum(_peak(process) for process in _family(os.getpid()))


def _peak(process: int) -> int:
    fields = _status(process)
    return 1024 * int(fields["VmHWM"].split()[0]) if "VmHWM" in fields else 0


def _family(process: int) -> list[int]:
    """Returns a process and all below it."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            found += _family(int(child))
    return found


def _status(process: int) -> Mapping[str, str]:
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
