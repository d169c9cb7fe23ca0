"""Runs of several workers that lose a process, are interrupted, or whose driver is killed.

Each is the command itself, with a Ray of its own: what counts is what is left of it afterwards.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

START_S = 300.0
"""A start takes 20 s on an idle machine."""
GONE_S = 10.0
LONG = 500
"""Iterations, of which a test sees a few."""


class Command:
    """`flexrlhf train` as a process, and all processes that it starts."""

    def __init__(self, config: Path, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._errors = folder.with_suffix(f".{time.monotonic_ns()}.txt")
        line = [sys.executable, "-m", "flexrlhf.cli", "train", str(config)]
        line += ["--run-dir", str(folder), *arguments]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(line, stdout=errors, stderr=errors)
        self._family: list[psutil.Process] = []

    @property
    def said(self) -> str:
        """Both outputs."""
        return self._errors.read_text()

    def wait_for_rows(self, count: int) -> None:
        """Waits until so many iterations are recorded, and remembers the processes."""
        until_s = time.monotonic() + START_S
        while len(rows(self.folder)) < count:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.05)
        self._family = psutil.Process(self.process.pid).children(recursive=True)

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes of the workers."""
        return [process for process in self._family if "ray::DeviceHost" in _line(process)]

    def wait(self, limit_s: float) -> int:
        """Returns the exit status."""
        return self.process.wait(limit_s)

    def assert_gone(self) -> None:
        """Checks that nothing is left of it."""
        assert len(self._family) >= 4  # two workers, Ray's own and its watchers
        _, alive = psutil.wait_procs(self._family, timeout=GONE_S)
        assert not [_line(process) for process in alive]

    def end(self) -> None:
        """Ends it, however a test went."""
        for process in (self.process, *self._family):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(GONE_S)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of a run's metrics."""
    file = folder / "metrics.jsonl"
    text = file.read_text() if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture
def content(document) -> dict[str, Any]:
    """PPO on two workers, a checkpoint after every iteration."""
    content = document("ppo", dtype="float64")
    content["training"]["iterations"] = LONG
    content["run"]["checkpoint_every"] = 1
    content["cluster"] = {"workers": 2}
    content["placement"] = {"strategy": "colocated"}
    return content


@pytest.fixture
def started(content, config_file, tmp_path) -> Iterator[Callable[..., Command]]:
    """Starts the command or goes on with its run, and ends what a test leaves."""
    commands: list[Command] = []

    def start(*arguments: str) -> Command:
        commands.append(Command(config_file(content), tmp_path / "run", *arguments))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


def test_a_worker_that_is_killed_is_named_and_ends_the_run(started):
    command = started()
    command.wait_for_rows(2)
    victim = command.workers[1]
    victim.kill()
    assert command.wait(60) == 1
    said = command.said
    assert f"number {victim.pid}, ended" in said
    assert said.count("WorkerLost") == 1
    assert "Traceback" not in said
    assert "--resume" in said
    command.assert_gone()


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(started, content, train):
    command = started()
    command.wait_for_rows(2)
    command.process.send_signal(signal.SIGINT)
    assert command.wait(60) == 1
    command.assert_gone()
    assert "Traceback" not in command.said
    iterations = len(rows(command.folder)) + 1
    resumed = started("--resume", "--set", f"training.iterations={iterations}")
    assert resumed.wait(START_S) == 0, resumed.said
    assert "Token authentication" not in resumed.said
    content["training"]["iterations"] = iterations
    content["cluster"] = "auto"
    train(content, "one")
    _assert_same(rows(command.folder), rows(command.folder.parent / "one"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_run_whose_driver_is_killed(started, number):
    command = started()
    command.wait_for_rows(2)  # the first is in a checkpoint by then
    command.process.send_signal(number)
    command.wait(GONE_S)
    command.assert_gone()
    assert list((command.folder / "checkpoints").glob("iteration-*"))


def _assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [row["iteration"] for row in found] == [row["iteration"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        for name in ("reward/mean", "loss/policy", "loss/value", "tokens"):
            assert row[name] == pytest.approx(other[name], rel=1e-6, abs=1e-9), name
