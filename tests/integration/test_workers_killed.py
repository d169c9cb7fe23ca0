"""Runs of several workers that lose a process, are interrupted, or whose driver is killed.

Each is the command itself, with a Ray of its own: what counts is what is left of it afterwards.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from train_command import GONE_S, START_S, TrainCommand, whole_rows

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

LONG = 500
"""Iterations, of which a test sees a few."""


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
def started(content, config_file, tmp_path) -> Iterator[Callable[..., TrainCommand]]:
    """Starts the command or goes on with its run, and ends what a test leaves."""
    commands: list[TrainCommand] = []

    def start(*arguments: str, folder: str = "run") -> TrainCommand:
        commands.append(TrainCommand(config_file(content), tmp_path / folder, *arguments))
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
    iterations = len(whole_rows(command.folder)) + 1
    resumed = started("--resume", "--set", f"training.iterations={iterations}")
    assert resumed.wait(START_S) == 0, resumed.said
    assert "Token authentication" not in resumed.said
    content["training"]["iterations"] = iterations
    content["cluster"] = "auto"
    train(content, "one")
    _assert_same(whole_rows(command.folder), whole_rows(command.folder.parent / "one"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_run_whose_driver_is_killed(started, number):
    command = started()
    command.wait_for_rows(2)  # the first is in a checkpoint by then
    command.process.send_signal(number)
    command.wait(GONE_S)
    command.assert_gone()
    assert list((command.folder / "checkpoints").glob("iteration-*"))


@pytest.mark.full
def test_a_run_that_generates_ahead_goes_on_when_its_driver_was_killed(started, content):
    content["weights"] = {"max_staleness": 1}
    content["placement"] = {"strategy": "disaggregated"}
    command = started()
    command.wait_for_rows(3)
    command.process.kill()
    command.wait(GONE_S)
    command.assert_gone()
    iterations = len(whole_rows(command.folder)) + 1
    resumed = started("--resume", "--set", f"training.iterations={iterations}")
    assert resumed.wait(START_S) == 0, resumed.said
    found = whole_rows(command.folder)
    content["training"]["iterations"] = iterations
    content["run"]["checkpoint_every"] = 10 * LONG
    unbroken = started(folder="unbroken")
    assert unbroken.wait(START_S) == 0, unbroken.said
    _assert_same(found, whole_rows(unbroken.folder))
    assert found[-1]["staleness/max"] == 1


def _assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [row["iteration"] for row in found] == [row["iteration"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        for name in ("reward/mean", "loss/policy", "loss/value", "tokens"):
            assert row[name] == pytest.approx(other[name], rel=1e-6, abs=1e-9), name
