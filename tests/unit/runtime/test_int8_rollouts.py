"""Tiny runs whose answers come of weights in int8, and what corrects for that."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from placed_runs import PlacedRuns
from run_differences import rows
from tiny_runs import tiny_config, tiny_data, write_files

from flexrlhf.config.resolution import spec_of
from flexrlhf.learning.rollout.int8_linear import can_multiply_int8
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.runtime.launch import launch

pytestmark = pytest.mark.skipif(not can_multiply_int8(), reason="int8 products are not exact here")
WEIGHTS = ("importance/mean", "importance/capped_fraction", "importance/approx_kl")
NOT_OF_THE_RUN = ("time/", "throughput/", "memory/", "utilization/", "share/")


def metrics_of(
    folder: Path, variant: str, name: str = "run", iterations: int = 3, **sections: Any
) -> list[dict[str, float]]:
    """Trains in `folder`/`name`, on from what it holds, and returns its metrics."""
    write_files(folder)
    config = tiny_config(folder, variant, dtype="float32", iterations=iterations, changes=sections)
    launched = launch(config, tiny_data(config, folder))
    run = PlacedRuns._trained(launched, one_device_plan(spec_of(config)), folder / name)
    return [
        {key: value for key, value in row.items() if not key.startswith(NOT_OF_THE_RUN)}
        for row in rows(run.folder / "metrics.jsonl")
        if row["iteration"] > 0
    ]


@pytest.mark.parametrize("variant", ["ppo", "ppo-shared", "grpo", "grpo-once"])
def test_answers_of_rounded_weights_are_weighed(tmp_path: Path, variant: str) -> None:
    for row in metrics_of(tmp_path, variant, rollout={"weights": "int8"}):
        assert all(math.isfinite(value) for value in row.values())
        assert 1e-4 < row["logprob_gap/max"] < 1
        assert row["importance/mean"] == pytest.approx(1, abs=0.05)
        assert row["importance/capped_fraction"] < 0.1
        assert 1e-7 < row["importance/approx_kl"] < 0.05
        assert abs(row["importance/mean"] - 1) > 1e-5


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("variant", ["ppo", "ppo-shared", "grpo", "grpo-once"])
def test_the_trainers_own_answers_weigh_one(tmp_path: Path, variant: str, level: str) -> None:
    """Within rounding; the losses and what is learnt are then those without weights."""
    plain = metrics_of(tmp_path, variant, "plain")
    weighed = metrics_of(tmp_path, variant, "weighed", algorithm={"importance": level})
    for without, row in zip(plain, weighed, strict=True):
        assert row["importance/mean"] == pytest.approx(1, abs=1e-5)
        assert row["importance/capped_fraction"] == 0
        assert row["importance/approx_kl"] == pytest.approx(0, abs=1e-9)
        assert row.keys() - without.keys() == set(WEIGHTS)
        for key, value in without.items():
            assert row[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("variant", ["ppo", "grpo-once"])
def test_a_resumed_run_is_the_unbroken_one(tmp_path: Path, variant: str) -> None:
    sections = {"rollout": {"weights": "int8"}}
    whole = metrics_of(tmp_path, variant, "whole", **sections)
    metrics_of(tmp_path, variant, "broken", iterations=2, **sections)
    assert metrics_of(tmp_path, variant, "broken", **sections) == whole


def test_a_cap_below_one_counts_less(tmp_path: Path) -> None:
    given = {"rollout": {"weights": "int8"}, "algorithm": {"importance_cap": 0.5}}
    first = metrics_of(tmp_path, "grpo-once", iterations=1, **given)[0]
    free = metrics_of(
        tmp_path,
        "grpo-once",
        "free",
        iterations=1,
        **{**given, "algorithm": {"importance_cap": None}},
    )[0]
    assert first["importance/mean"] == pytest.approx(0.5, abs=1e-6)
    assert first["importance/capped_fraction"] == 1
    assert free["importance/mean"] == pytest.approx(1, abs=0.05)
    assert first["grad_norm"] == pytest.approx(free["grad_norm"] / 2, rel=0.05)
