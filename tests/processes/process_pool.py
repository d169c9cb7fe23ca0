"""Processes that are started once and then run one function after another, on every rank at once.

Importing torch takes seconds, so one process imports it and forks the ranks. They form a world over
gloo. A function is named by its file and its name, arguments and results are JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_START_S = 120.0
_GRACE_S = 2.0
"""How long the other ranks may go on after one has failed."""


class RemoteError(AssertionError):
    """A function raised on some rank, or did not end in time; the text has every traceback."""


class ProcessPool:
    """A world of `size` ranks; it starts when it is used, anew after a rest or a hanging rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._launcher: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(
        self, function: Callable[..., Any], *, deadline_s: float = 60.0, **arguments: Any
    ) -> list[Any]:
        """Calls a module-level function on every rank and returns its results by rank.

        The function finds out by `torch.distributed.get_rank()` where it is.

        Raises:
            RemoteError: it raised, or was not done before the deadline.
        """
        if not self._connections:
            self._start_ranks()
        file = inspect.getsourcefile(function)
        request = {"file": file, "function": function.__qualname__, "arguments": arguments}
        for connection in self._connections:
            connection.send_bytes(json.dumps(request).encode())
        answers = self._answers(deadline_s)
        failures = [
            f"rank {rank}: {answer.get('error', 'no answer')}"
            for rank, answer in enumerate(answers)
            if "result" not in answer
        ]
        if any(not answer for answer in answers):
            failures += self._stacks(answers)
            self.rest()
        if failures:
            raise RemoteError("\n".join([f"{function.__qualname__}({arguments})", *failures]))
        return [answer["result"] for answer in answers]

    def close(self) -> None:
        """Ends every process."""
        self.rest()
        if self._launcher is not None:
            assert self._launcher.stdin is not None
            self._launcher.stdin.close()
            self._launcher.kill()
            self._launcher.wait()
            self._launcher = None

    def _answers(self, deadline_s: float) -> list[dict[str, Any]]:
        """Waits for every rank; an empty answer is none."""
        answers: list[dict[str, Any]] = [{} for _ in self._connections]
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        end = time.monotonic() + deadline_s
        while waiting and (left := end - time.monotonic()) > 0:
            for connection in wait(list(waiting), timeout=left):
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    answers[rank] = json.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    answers[rank] = {"error": "the process died"}
                if "error" in answers[rank]:
                    end = min(end, time.monotonic() + _GRACE_S)
        return answers

    def _stacks(self, answers: list[dict[str, Any]]) -> list[str]:
        """Returns where the ranks without an answer are."""
        assert self._folder is not None
        silent = [rank for rank, answer in enumerate(answers) if not answer]
        for rank in silent:
            os.kill(self._pids[rank], signal.SIGUSR1)
        time.sleep(0.5)
        logs = {rank: Path(self._folder.name, f"stderr-{rank}") for rank in silent}
        return [f"rank {rank} is here:\n{log.read_text()[-4000:]}" for rank, log in logs.items()]

    def _start_ranks(self) -> None:
        if self._launcher is None:
            self._launcher = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank_process.py"))],
                stdin=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._folder = tempfile.TemporaryDirectory()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{self._folder.name}/door")
            door.listen(self.size)
            door.settimeout(_START_S)
            assert self._launcher.stdin is not None
            self._launcher.stdin.write(f"{self.size} {self._folder.name}\n".encode())
            self._launcher.stdin.flush()
            arrived = [Connection(door.accept()[0].detach()) for _ in range(self.size)]
        told = {connection: json.loads(connection.recv_bytes()) for connection in arrived}
        self._connections = sorted(arrived, key=lambda connection: told[connection]["rank"])
        self._pids = [told[connection]["pid"] for connection in self._connections]

    def rest(self) -> None:
        """Ends the ranks; the next function finds new ones, forked from what has torch imported."""
        for connection, pid in zip(self._connections, self._pids, strict=True):
            connection.close()
            with suppress(ProcessLookupError):  # it died of what it was told to do
                os.kill(pid, signal.SIGKILL)
        if self._folder is not None:
            self._folder.cleanup()
        self._connections, self._pids, self._folder = [], [], None
