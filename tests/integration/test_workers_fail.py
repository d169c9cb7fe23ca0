"""What the user hears when a worker raises, or never comes back from its task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from placed_runs import PlacedRuns

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import FlexError, WorkerLost
from flexrlhf.planning.placement.plan import Plan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

DEADLINE_S = 15.0
RAISES = """
def judge(prompts, completions, **columns):
    raise ZeroDivisionError("no answer is worth anything")
"""
WAITS = """
import time
from pathlib import Path

def judge(prompts, completions, **columns):
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s and not Path({release!r}).exists():
        time.sleep(0.1)
    return [0.0 for _ in completions]
"""


def _planned(placed_runs: PlacedRuns, judge: Path, **run: Any) -> tuple[RunConfig, Plan]:
    return placed_runs.plan(
        "grpo",
        2,
        changes={
            "reward": {"functions": [{"path": f"{judge}:judge"}]},
            "placement": {"strategy": "disaggregated"},
            "data": {"evaluation": None},
            "run": {"recorded_samples": 0, **run},
        },
    )


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Path]:
    """A file that lets the worker go on; whatever happens it is there in the end."""
    path = tmp_path / "release"
    yield path
    path.touch()


def test_an_exception_of_a_worker_comes_once_with_its_role_and_task(placed_runs, tmp_path):
    judge = tmp_path / "judge.py"
    judge.write_text(RAISES)
    config, plan = _planned(placed_runs, judge)
    with pytest.raises(FlexError) as raised:
        placed_runs.on_workers(config, plan)
    said = str(raised.value)
    assert said.count("no answer is worth anything") == 1
    assert re.search(r"worker \d \(.*reward.*\), task rewards/reward/0 of iteration 1", said)
    assert "Traceback" not in said
    assert "ray" not in said.lower()


def test_after_a_deadline_every_worker_says_what_it_is_at(placed_runs, tmp_path, release):
    judge = tmp_path / "judge.py"
    judge.write_text(WAITS.format(release=str(release)))
    config, plan = _planned(placed_runs, judge, task_deadline_s=DEADLINE_S)
    with pytest.raises(WorkerLost) as raised:
        placed_runs.on_workers(config, plan)
    said = str(raised.value)
    assert f"Nothing has ended for {DEADLINE_S:g} s. In progress: " in said
    for rank in range(2):
        assert re.search(rf"worker {rank} \(\w+.*\): told and not reported: ", said)
    assert "told and not reported: 1 (task rewards/reward/0 of iteration 1" in said
    assert "engine's weights 0; holds 8 answers of iteration 1" in said
    assert "in judge" in said  # the stack of the thread that waits
    assert "Look at the stacks above" in said


def test_the_processes_take_the_next_run_after_one_that_failed(placed_runs, tmp_path):
    config, plan = placed_runs.plan("grpo", 2, changes={"data": {"evaluation": None}})
    placed = placed_runs.on_workers(config, plan)
    assert (placed.folder / "metrics.jsonl").read_text().count("\n") == 3
