"""A program that is timed: a process that takes turns."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flexrlhf.core.errors import RunFailed

START_S: Final = 900.0
"""In which a program has to be ready: vLLM compiles for minutes."""
_END_S: Final = 30.0
_LINES: Final = 3
"""Of what a program printed, to say why it ended."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a program is run for a job."""

    name: str
    """As in the tables: with its version."""
    command: Sequence[str]
    environment: Mapping[str, str]
    assignment: Mapping[str, Any]
    """What it is told: job, folders, settings."""
    settings: Mapping[str, Any]
    """Of those, what was chosen for it: threads, for example."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class TurnDone:
    """What a program did in a turn."""

    seconds: float
    tokens: int
    steps: int
    peak_bytes: int
    """Most that it held since it started."""
    rewards: Sequence[float] = ()
    """Mean of each iteration's answers, where answers are rewarded."""


class Contestant:
    """Starts a program and waits until its first turn, which is not timed, is over.

    Between turns its processes are stopped: some wait for work in a loop, as vLLM's worker does,
    and would take a core from whoever has the turn.

    Args:
        entry: how to run it.
        log: file for what it prints; its assignment lies beside.

    Raises:
        RunFailed: it ended, or is not ready in time.
    """

    def __init__(self, entry: Entry, log: Path) -> None:
        self.entry = entry
        self._log = log
        told = log.with_suffix(".json")
        told.write_text(json.dumps(entry.assignment), encoding="utf-8")
        began_s = time.monotonic()
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [*entry.command, str(told)],
                env=dict(entry.environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            answer = self._answer(START_S)
            self.versions: Mapping[str, str] = answer.pop("versions")
            self.first = TurnDone(**answer)
            """The turn that is not timed."""
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)
        self.start_up_s = time.monotonic() - began_s
        """From its command to the end of its first turn."""

    def turn(self) -> TurnDone:
        """Lets the program work for one turn.

        Raises:
            RunFailed: it ended, or did not end its turn in time.
        """
        assert self._process.stdin is not None, "it is a pipe"
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # then it ended, which the answer tells
            self._process.stdin.write("turn\n")
            self._process.stdin.flush()
        done = TurnDone(**self._answer(self.entry.deadline_s))
        self._signal(signal.SIGSTOP)
        return done

    def close(self) -> None:
        """Ends the program, and what it started; once more does nothing."""
        self._signal(signal.SIGCONT)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None, "it is a pipe"
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._signal(signal.SIGKILL)  # and what it left behind
        self._process.wait(_END_S)

    def _signal(self, number: signal.Signals) -> None:
        """Tells the program and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self, deadline_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None, "it is a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            is_there = bool(selector.select(deadline_s))
        if not is_there:
            self._signal(signal.SIGKILL)  # it had its time, and need not be waited for once more
        line = self._process.stdout.readline() if is_there else ""
        if line:
            return json.loads(line)
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RunFailed(
            f"{self.entry.name} {'ended' if is_there else 'said nothing'} in a turn: "
            + "\n  ".join(said[-_LINES:] or ["it printed nothing"]),
            f"A turn takes at most {deadline_s:g} s.",
            f"What it printed is in {self._log}.",
        )
