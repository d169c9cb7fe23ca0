"""Two runs on several workers, at once on one machine, each with a Ray of its own."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from placed_runs import PlacedRuns
from run_differences import differences
from train_command import START_S, TrainCommand, listening

from flexrlhf.config.loading import dump_config

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_two_runs_at_once_do_not_disturb_each_other(placed_runs: PlacedRuns, tmp_path: Path):
    """The run of a command, while this process makes the same one again and again."""
    config, plan = placed_runs.plan("ppo", 2, changes={"placement": {"strategy": "colocated"}})
    file = tmp_path / "run.yaml"
    file.write_text(dump_config(config))
    placed_runs.processes.start([2])
    own = psutil.Process().children(recursive=True)
    command = TrainCommand(file, tmp_path / "run")
    try:
        folders: list[Path] = []
        were_both_there, until_s = False, time.monotonic() + START_S
        while command.process.poll() is None:
            assert time.monotonic() < until_s, command.said
            folders.append(placed_runs.on_workers(config, plan).folder)
            command.look()
            ports = listening(own)
            assert ports
            assert not ports & listening(command.family)
            were_both_there |= len(command.workers) == 2
        assert command.wait(0) == 0, command.said
        assert were_both_there
        command.assert_gone()
    finally:
        command.end()
    for folder in folders:
        found = differences(command.folder, folder)
        assert (found.metrics, found.weights, found.same_tokens) == (0.0, 0.0, True), found.at
