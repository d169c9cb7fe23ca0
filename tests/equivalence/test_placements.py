"""Where roles sit changes nothing: a covering set of placements against one device, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from placed_case import PlacedCase
from placed_cases import COVERING
from placed_runs import PlacedRuns
from run_differences import Differences, differences, rows

pytestmark = pytest.mark.ray

_CASES = [(variant, case) for case in COVERING for variant in case.variants]


def assert_same(found: Differences) -> None:
    assert found.same_tokens
    assert found.metrics < 1e-6, found.at
    assert found.weights < 1e-6


@pytest.mark.parametrize(
    ("variant", "case"), _CASES, ids=[f"{variant}: {case.name}" for variant, case in _CASES]
)
def test_a_placement_gives_the_run_of_one_device(placed_runs, variant, case):
    config, plan = placed_runs.plan(variant, case.workers, changes=case.sections(variant))
    run = placed_runs.on_workers(config, plan)
    assert_same(differences(run.folder, placed_runs.on_one_device(variant).folder))


@pytest.mark.parametrize(
    ("variant", "case"),
    [
        ("ppo", PlacedCase("pools", 2, {"strategy": "disaggregated"})),
        ("sft", PlacedCase("replicas", 2, {"strategy": "colocated"}, trained={"zero_stage": 1})),
        ("dpo", PlacedCase("apart", 2, {"devices": {"actor": [0], "reference": [1]}})),
    ],
    ids=["ppo", "sft", "dpo"],
)
def test_a_resumed_run_gives_the_run_of_one_device(placed_runs, variant, case):
    sections = case.sections(variant)
    first, plan = placed_runs.plan(variant, case.workers, iterations=2, changes=sections)
    begun = placed_runs.on_workers(first, plan)
    assert [row["iteration"] for row in rows(begun.folder / "metrics.jsonl")][-1] == 2
    whole, plan = placed_runs.plan(variant, case.workers, changes=sections)
    run = placed_runs.on_workers(whole, plan, begun.folder)
    assert_same(differences(run.folder, placed_runs.on_one_device(variant).folder))


def test_one_number_that_differs_is_seen(placed_runs: PlacedRuns, tmp_path: Path):
    expected = placed_runs.on_one_device("grpo").folder
    run = tmp_path / "run"
    run.mkdir()
    (run / "model").symlink_to(expected / "model")
    (run / "samples.jsonl").symlink_to(expected / "samples.jsonl")
    text = (expected / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text)
    assert differences(run, expected) == Differences(0.0, 0.0, same_tokens=True, at="")
    last = rows(expected / "metrics.jsonl")[-1]["grad_norm"]
    (run / "metrics.jsonl").write_text(text.replace(str(last), str(last * (1 + 1e-5))))
    assert differences(run, expected).at == "grad_norm of iteration 3"
