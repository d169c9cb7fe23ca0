"""One-step-off runs: checkpoints change nothing, and a run that is stopped goes on from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from placed_runs import PlacedRun, PlacedRuns
from run_differences import differences, rows
from safetensors.torch import load_file

from flexrlhf.core.timeline import read_trace
from flexrlhf.runtime.stages import SilentListener

pytestmark = pytest.mark.ray

ITERATIONS = 4
SECTIONS: Mapping[str, Any] = {
    "weights": {"max_staleness": 1},
    "placement": {"strategy": "disaggregated"},
    "rollout": {"micro_batches": 2},
}


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


def stale_run(placed_runs: PlacedRuns, variant: str, every: int, **keys: Any) -> PlacedRun:
    """Runs a variant with answers that are one iteration old, a checkpoint after every so many."""
    sections = {**SECTIONS, "run": {"checkpoint_every": every, "keep_checkpoints": 9}}
    config, plan = placed_runs.plan(variant, 2, iterations=ITERATIONS, changes=sections)
    assert plan.strategy == "disaggregated"
    return placed_runs.on_workers(config, plan, **keys)


@pytest.fixture(scope="module")
def unbroken(placed_runs: PlacedRuns) -> PlacedRun:
    """PPO that nothing stops, without a checkpoint on the way."""
    return stale_run(placed_runs, "ppo", every=100)


def assert_same(run: Path, expected: Path) -> None:
    found = differences(run, expected)
    assert found.same_tokens
    assert found.metrics < 1e-6, found.at
    assert found.weights < 1e-6


def test_answers_are_one_iteration_old(unbroken: PlacedRun):
    stale = [row["staleness/max"] for row in rows(unbroken.folder / "metrics.jsonl")[1:]]
    assert stale == [0, *[1] * (ITERATIONS - 1)]


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_change_nothing(placed_runs: PlacedRuns, unbroken: PlacedRun, every: int):
    run = stale_run(placed_runs, "ppo", every)
    assert_same(run.folder, unbroken.folder)


def test_the_next_but_one_is_generated_while_the_next_one_trains(placed_runs: PlacedRuns):
    """Though a checkpoint is written between any two iterations."""
    run = stale_run(placed_runs, "ppo", every=1)
    spans = read_trace(run.folder / "timeline.json")["measured"].spans
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
        stale_run(placed_runs, "ppo", 1, folder=folder, listener=StoppingListener(after))
    saved = folder / "checkpoints" / f"iteration-{after}" / "experience"
    tensors = load_file(saved / "worker-1.safetensors")
    assert len(tensors["samples/sample_ids"]) == 8  # a whole batch, of the next iteration
    resumed = stale_run(placed_runs, "ppo", 1, folder=folder)
    assert_same(resumed.folder, unbroken.folder)
