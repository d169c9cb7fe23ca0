"""Worker processes driven through pipes: what Ray does for a run, for a check without Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from threading import Lock
from typing import Any, Final

from flexrlhf.core.errors import WorkerLost
from flexrlhf.runtime.ray_cluster.device_host import DeviceHost, Report

_THREADS: Final = {"work": 1, "data": 4, "control": 2}
"""Of each process: one that computes, some that fetch, some that answer beside."""
_END_S: Final = 5.0


class PipedProcesses:
    """Processes with a `DeviceHost` each, by rank.

    Args:
        number: of processes.
    """

    def __init__(self, number: int) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(ours)
            self._processes.append(process)
        self._numbers = count()
        self._arrived: dict[int, Report] = {}

    def __len__(self) -> int:
        return len(self._pipes)

    def call(self, rank: int, group: str, method: str, *arguments: Any) -> int:
        """Begins a call of a host and returns the number of its report."""
        number = next(self._numbers)
        self._pipes[rank].send((number, group, method, arguments))
        return number

    def first(self, numbers: Collection[int], deadline_s: float) -> int:
        """Returns one of the numbers whose report is there.

        Raises:
            WorkerLost: none came in time, or a process ended.
        """
        until_s = time.monotonic() + deadline_s
        while True:
            for number in numbers:
                if number in self._arrived:
                    return number
            left_s = until_s - time.monotonic()
            ready = wait(self._pipes, timeout=max(0.0, left_s)) if left_s > 0 else []
            if not ready:
                raise _lost(f"No worker reported within {deadline_s:g} s.")
            for pipe in ready:
                self._receive(pipe)

    def report(self, number: int) -> Report:
        """Takes a report that is there.

        Raises:
            WorkerLost: the worker failed.
        """
        report = self._arrived.pop(number)
        if report.failure is not None:
            raise _lost(f"{report.failure.said}\n{report.failure.stack}")
        return report

    def values(self, numbers: Sequence[int], deadline_s: float) -> list[Any]:
        """Waits for all reports and returns their values in order."""
        for waiting in range(len(numbers), 0, -1):
            self.first(numbers[waiting - 1 : waiting], deadline_s)
        return [self.report(number).value for number in numbers]

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()

    def _receive(self, pipe: Any) -> None:
        try:
            number, report = pipe.recv()
        except (EOFError, ConnectionResetError):
            rank = self._pipes.index(pipe)
            raise _lost(f"The process of worker {rank} ended.") from None
        self._arrived[number] = report


def _lost(said: str) -> WorkerLost:
    return WorkerLost(said, "Workers report until the check ends.", "Look at the stack above.")


def _serve(pipe: Connection) -> None:
    """Carries out calls, each in a thread of its group, until the other end is closed."""
    pools = {group: ThreadPoolExecutor(threads) for group, threads in _THREADS.items()}
    host = DeviceHost(threads=1)
    sending = Lock()

    def carry_out(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        report = getattr(host, method)(*arguments)
        with sending:
            pipe.send((number, report))

    while True:
        try:
            number, group, method, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # whatever its threads are at
        pools[group].submit(carry_out, number, method, arguments)
