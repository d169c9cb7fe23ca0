"""`flexrlhf train` as a process of its own, with all that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import psutil

START_S: Final = 300.0
"""A start takes 20 s on an idle machine."""
GONE_S: Final = 10.0
LISTENING: Final = ("env", "--default-signal=INT")
"""What a shell starts in the background ignores the interrupt, and so would all its children."""


class TrainCommand:
    """`flexrlhf train` as a process, and all processes that it starts."""

    def __init__(self, config: Path, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._errors = folder.with_suffix(f".{time.monotonic_ns()}.txt")
        line = [*LISTENING, sys.executable, "-m", "flexrlhf.cli", "train", str(config)]
        line += ["--run-dir", str(folder), *arguments]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(line, stdout=errors, stderr=errors)
        self.family: list[psutil.Process] = []
        """All processes that were seen of it."""

    @property
    def said(self) -> str:
        """Both outputs."""
        return self._errors.read_text()

    def wait_for_rows(self, count: int) -> None:
        """Waits until so many iterations are recorded, and remembers the processes."""
        until_s = time.monotonic() + START_S
        while len(whole_rows(self.folder)) < count:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.05)
        self.look()

    def look(self) -> None:
        """Remembers the processes that there are now, beside those of before."""
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.family += [process for process in family if process not in self.family]

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes of the workers."""
        return [process for process in self.family if "ray::DeviceHost" in _line(process)]

    def wait(self, limit_s: float) -> int:
        """Returns the exit status."""
        return self.process.wait(limit_s)

    def assert_gone(self) -> None:
        """Checks that nothing is left of it."""
        assert len(self.family) >= 4  # two workers, Ray's own and its watchers
        _, alive = psutil.wait_procs(self.family, timeout=GONE_S)
        assert not [_line(process) for process in alive]

    def end(self) -> None:
        """Ends it, however a test went."""
        for process in (self.process, *self.family):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(GONE_S)


def listening(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    """Returns addresses and ports on which processes listen."""
    found: set[tuple[str, int]] = set()
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def whole_rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of a run's metrics."""
    file = folder / "metrics.jsonl"
    text = file.read_text() if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
