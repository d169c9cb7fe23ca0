"""`auto` speculates where a plan expects a gain, and a plan says what it expects."""

from __future__ import annotations

from typing import Any

import pytest

from flexrlhf.app.planning import plan_document
from flexrlhf.config import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.search.speculation import with_speculation
from flexrlhf.report.plan_text import plan_text

ONE_A100 = {
    "nodes": [{"pool": "all", "count": 1, "devices": 1, "type": "A100-80G", "link": "NVLink3"}]
}


def grpo(prompts: int, **rollout: Any) -> dict[str, Any]:
    return {
        "algorithm": {"name": "grpo", "kl_coef": 0},
        "model": {"actor": {"shape": "qwen2.5-1.5b"}},
        "reward": {"functions": [{"name": "math"}]},
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 64, **rollout},
        "training": {"prompts_per_iteration": prompts, "precision": "bfloat16"},
        "cluster": ONE_A100,
    }


def settled(document: dict[str, Any]) -> tuple[str, float]:
    config, outlooks = with_speculation(resolve(build_config(document)))
    (outlook,) = outlooks.values()
    assert outlook.is_taken == (config.rollout.speculation != "none")
    return config.rollout.speculation, outlook.speedup


def test_auto_is_taken_for_few_answers_and_left_for_many() -> None:
    chosen, speedup = settled(grpo(1, speculation="auto", speculative_acceptance=0.6))
    assert chosen == "prompt_lookup"
    assert speedup > 1
    chosen, speedup = settled(grpo(2000, speculation="auto", speculative_acceptance=0.6))
    assert chosen == "none"
    assert speedup < 1


def test_what_is_asked_for_stays_though_it_loses() -> None:
    chosen, speedup = settled(grpo(2000, speculation="prompt_lookup"))
    assert chosen == "prompt_lookup"
    assert speedup < 1


def test_without_speculation_nothing_is_expected() -> None:
    config = resolve(build_config(grpo(1)))
    assert with_speculation(config) == (config, {})


@pytest.mark.parametrize(("acceptance", "faster"), [(0.9, True), (0.0, False)])
def test_the_plan_says_what_it_expects(acceptance: float, *, faster: bool) -> None:
    document = plan_document(
        build_config(grpo(1, speculation="auto", speculative_acceptance=acceptance))
    )
    outlook = document["speculation"]["grpo"]
    assert outlook["is_taken"] == faster
    plain = plan_document(build_config(grpo(1)))
    assert "speculation" not in plain
    seconds = [held["plans"][0]["predicted"]["stage_s"]["generate"] for held in (document, plain)]
    assert (seconds[0] < 0.9 * seconds[1]) == faster
    said = plan_text(document)
    assert f"{outlook['speedup']:.2f} times as fast" in said
    assert ("not taken" in said) != faster
