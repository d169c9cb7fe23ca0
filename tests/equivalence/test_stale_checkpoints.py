"""One-step-off runs: checkpoints change nothing, and a run that is stopped goes on from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from placed_runs import PlacedRun, PlacedRuns
from run_differences import differences, rows
from safetensors.torch import load_file

from flexrlhf.core.errors import CheckpointError
from flexrlhf.core.timeline import read_trace
from flexrlhf.runtime.stages import SilentListener

pytestmark = pytest.mark.ray

ITERATIONS = 4
_WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 0, "offload": False}
POOLS: Mapping[str, Any] = {"strategy": "disaggregated"}
APART: Mapping[str, Any] = {
    "devices": {
        "actor": [0, 1],
        "critic": [1],
        "reference": [3],
        "reward": [2, 3],
        "shadow_actor": [2, 3],
    },
    "roles": dict.fromkeys(("actor", "critic", "reference", "reward", "shadow_actor"), _WHOLE),
}
"""Replicas generate, and the critic that trains values the answers: no shadow does it."""


class Stopped(BaseException):
    """Ends a run as Ctrl-C does."""


class StoppingListener(SilentListener):
    """Stops a run after so many iterations, while the next ones are under way."""

    def __init__(self, after: int) -> None:
        self._after = after

    def finish_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Raises when it is time."""
        if iteration == self._after:
            raise Stopped


def stale_run(
    placed_runs: PlacedRuns,
    every: int,
    placement: Mapping[str, Any] = POOLS,
    **keys: Any,
) -> PlacedRun:
    """Runs PPO with answers that are one iteration old, a checkpoint after every so many."""
    changes = {
        "weights": {"max_staleness": 1},
        "rollout": {"micro_batches": 2},
        "placement": placement,
        "run": {"checkpoint_every": every, "keep_checkpoints": 9},
    }
    workers = 2 if placement is POOLS else 4
    config, plan = placed_runs.plan("ppo", workers, iterations=ITERATIONS, changes=changes)
    return placed_runs.on_workers(config, plan, **keys)


@pytest.fixture(scope="module")
def unbroken(placed_runs: PlacedRuns) -> PlacedRun:
    """PPO that nothing stops, without a checkpoint on the way."""
    return stale_run(placed_runs, every=100)


@pytest.fixture(scope="module")
def saving(placed_runs: PlacedRuns) -> PlacedRun:
    """The same with a checkpoint after every iteration."""
    return stale_run(placed_runs, every=1)


def assert_same(run: Path, expected: Path) -> None:
    found = differences(run, expected)
    assert found.same_tokens
    assert found.metrics < 1e-6, found.at
    assert found.weights < 1e-6


def test_answers_are_one_iteration_old(unbroken: PlacedRun):
    stale = [row["staleness/max"] for row in rows(unbroken.folder / "metrics.jsonl")[1:]]
    assert stale == [0, *[1] * (ITERATIONS - 1)]


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_change_nothing(
    placed_runs: PlacedRuns, unbroken: PlacedRun, saving: PlacedRun, every: int
):
    run = saving if every == 1 else stale_run(placed_runs, every)
    assert_same(run.folder, unbroken.folder)


def test_the_next_but_one_is_generated_while_the_next_one_trains(saving: PlacedRun):
    """Though a checkpoint is written between any two iterations."""
    spans = read_trace(saving.folder / "timeline.json")["measured"].spans
    for iteration in range(1, ITERATIONS):
        generation = [s for s in spans if (s.iteration, s.stage) == (iteration + 1, "generate")]
        training = [s for s in spans if (s.iteration, s.stage) == (iteration, "train")]
        assert min(s.start_s for s in generation) < max(s.end_s for s in training)


@pytest.mark.parametrize("after", range(1, ITERATIONS))
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(
    placed_runs: PlacedRuns, unbroken: PlacedRun, tmp_path: Path, after: int
):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        stale_run(placed_runs, 1, folder=folder, listener=StoppingListener(after))
    saved = folder / "checkpoints" / f"iteration-{after}" / "experience"
    tensors = load_file(saved / "worker-1.safetensors")
    assert len(tensors["samples/sample_ids"]) == 8  # a whole batch, of the next iteration
    resumed = stale_run(placed_runs, 1, folder=folder)
    assert_same(resumed.folder, unbroken.folder)


def test_the_same_where_several_workers_generate_and_the_critic_has_no_shadow(
    placed_runs: PlacedRuns, tmp_path: Path
):
    """Its values are then of newer weights than a shadow's would be."""
    unbroken = stale_run(placed_runs, 100, APART)
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        stale_run(placed_runs, 2, APART, folder=folder, listener=StoppingListener(2))
    assert_same(stale_run(placed_runs, 1, APART, folder=folder).folder, unbroken.folder)


def test_a_checkpoint_without_experience_goes_on_with_fresh_answers(
    placed_runs: PlacedRuns, tmp_path: Path
):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        stale_run(placed_runs, 1, folder=folder, listener=StoppingListener(2))
    checkpoint = folder / "checkpoints" / "iteration-2"
    shutil.rmtree(checkpoint / "experience")
    with pytest.raises(CheckpointError, match=r"(?s)worker-\d.json cannot be read.*Delete"):
        stale_run(placed_runs, 1, folder=folder)
    state = json.loads((checkpoint / "run.json").read_text())
    del state["ahead"]  # as it was before anything was generated ahead of a checkpoint
    (checkpoint / "run.json").write_text(json.dumps(state))
    stale_run(placed_runs, 1, folder=folder)
    stale = [row["staleness/max"] for row in rows(folder / "metrics.jsonl")[1:]]
    assert stale == [0, 1, 0, 1]
