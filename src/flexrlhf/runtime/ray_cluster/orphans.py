"""Ends what Ray leaves running for a minute or more when the process that began it is killed.

Ray's agents try to report the end of their machine to servers that ended before them. A process
beside them, which hears of the driver's end by a pipe, does not let them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import psutil

GRACE_S: Final = 4.0
"""How long processes may take to end by themselves once the driver has ended."""


@contextmanager
def children_begun() -> Iterator[list[psutil.Process]]:
    """Yields a list that, at the end of the block, holds what this process began in it."""
    before = set(psutil.Process().children(recursive=True))
    begun: list[psutil.Process] = []
    yield begun
    begun += set(psutil.Process().children(recursive=True)) - before


class OrphanGuard:
    """Waits in a process of its own for the end of this one, and then ends others.

    Args:
        processes: that may not outlive this one.
    """

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        known = [f"{process.pid}:{process.create_time()}" for process in processes]
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, *known],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )

    def release(self) -> None:
        """Lets it look for the last time: what it watches has been asked to end."""
        self._pipe.close()
        self._process.wait(timeout=3 * GRACE_S)

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin


def _present(known: str) -> psutil.Process | None:
    """Returns the process with a number and a time of beginning, unless it has ended."""
    number, _, begun_s = known.partition(":")
    try:
        process = psutil.Process(int(number))
        return process if abs(process.create_time() - float(begun_s)) < 1.0 else None
    except psutil.NoSuchProcess:
        return None


def main() -> None:
    """Reads until the other end of the pipe is closed, and ends what is left of the processes."""
    sys.stdin.buffer.read()
    present = [process for known in sys.argv[1:] if (process := _present(known)) is not None]
    _, alive = psutil.wait_procs(present, timeout=GRACE_S)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    main()
