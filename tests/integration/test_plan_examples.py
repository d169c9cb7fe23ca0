"""The shipped requests are planned as a user would, and their answers hold together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexrlhf import app
from flexrlhf.planning.placement.plan import Plan

PLANS = Path(__file__).parents[2] / "examples" / "plans"
QUICK = ("laptop", "ppo-7b-one-node", "ppo-small-reward", "grpo-7b", "dpo-13b")
"""Those that are answered in seconds; the others ask for dozens of devices."""

Document = dict[str, Any]


@pytest.fixture(scope="module", params=QUICK)
def answer(request: pytest.FixtureRequest) -> Document:
    return app.plan_document(app.load(PLANS / f"{request.param}.yaml"))


def test_the_best_comes_first_and_ranks_ascend(answer: Document):
    ranked = [plan for plan in answer["plans"] if plan["rank"] is not None]
    assert [plan["rank"] for plan in ranked] == list(range(1, len(ranked) + 1))
    assert answer["plans"][: len(ranked)] == ranked
    times_s = [plan["predicted"]["iteration_s"] for plan in ranked]
    assert times_s == sorted(times_s)
    assert [plan.get("chosen_by") for plan in ranked] == ["auto", *[None] * (len(ranked) - 1)]


def test_every_strategy_is_answered_once(answer: Document):
    names = [plan["strategy"] for plan in answer["plans"]]
    assert len(set(names)) == len(names) == 8


def test_shares_are_the_whole_iteration(answer: Document):
    for plan in answer["plans"]:
        if plan["feasible"]:
            assert sum(plan["predicted"]["shares"].values()) == pytest.approx(1, abs=0.01)


def test_every_loser_has_a_reason_and_those_that_ran_a_number(answer: Document):
    for plan in answer["plans"][1:]:
        assert plan["why"].endswith(".")
        if "placement" in plan:
            assert re.search(r"\d", plan["why"]), plan["why"]


def test_a_plan_returns_from_its_json(answer: Document):
    for plan in answer["plans"]:
        assert Plan.from_json(json.loads(json.dumps(plan))).to_json() == plan


def test_what_fits_stays_below_the_memory_that_may_be_filled(answer: Document):
    fill = answer["request"].get("placement", {}).get("memory_fill", 0.95)
    most = max(answer["plans"][0]["predicted"]["peak_bytes"]["0"].values())
    assert most <= fill * 85.9e9


@pytest.mark.parametrize(
    ("name", "strategy", "why"),
    [
        ("laptop", "disaggregated", "One device"),
        ("grpo-7b", "interleaved_1", "only one frozen model"),
        ("dpo-13b", "disaggregated", "generates nothing"),
    ],
)
def test_what_an_algorithm_has_no_use_for_is_said(name: str, strategy: str, why: str):
    plans = app.plan_document(app.load(PLANS / f"{name}.yaml"))["plans"]
    (plan,) = (plan for plan in plans if plan["strategy"] == strategy)
    assert why in plan["why"]
    assert not plan["feasible"]


def test_the_command_prints_one_document_and_writes_a_page(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    page = tmp_path / "plan.html"
    status, out, err = command("plan", PLANS / "laptop.yaml", "--json", "--html", page)
    assert status == 0
    assert json.loads(out)["plans"][0]["strategy"] == "colocated"
    assert err == f"page: {page}\n"
    assert page.read_text().startswith("<!doctype html>")


def test_each_stage_of_a_run_is_planned_with_the_models_of_those_before(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    request, page = tmp_path / "stages.yaml", tmp_path / "plan.html"
    request.write_text(
        """
        cluster: {nodes: [{count: 1, devices: 2, type: A100-80G}]}
        model: {actor: {shape: smollm2-135m}}
        stages:
          - {name: sft, algorithm: {name: sft}}
          - name: dpo
            algorithm: {name: dpo}
            model: {actor: {path: "stage:sft/actor"}}
        """
    )
    status, out, _ = command("plan", request, "--json", "--html", page)
    assert status == 0
    answer = json.loads(out)
    assert list(answer["stages"]) == ["sft", "dpo"]
    winners = [stage["plans"][0] for stage in answer["stages"].values()]
    assert answer["plans"] == winners
    assert set(winners[1]["placement"]) == {"actor", "reference"}
    assert page.read_text().count('role="tabpanel"') == 2


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_can_be_read(path: Path):
    config = app.load(path)
    assert all(stage.cluster != "auto" for _, stage in config.stage_configs())
    assert f"examples/plans/{path.name}" in path.read_text()
