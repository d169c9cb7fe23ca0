"""Every algorithm can be planned, with the passes that it has over others."""

from __future__ import annotations

from typing import Any

import pytest

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.names import ALGORITHMS
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.plans import ranked_plans

SMALL = {"shape": "qwen2.5-1.5b"}


def plan_of(algorithm: str, *, prompts: int = 16, devices: int = 2, **rollout: Any):
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=devices)
    given = [role for role in algorithm_spec(algorithm).roles if role in ("actor", "reward")]
    config = build_config(
        {
            "algorithm": {"name": algorithm, "kl_coef": 0.1},
            "model": dict.fromkeys(given, SMALL),
            "data": {"max_prompt_tokens": 128, "max_tokens": 256},
            "rollout": {"max_new_tokens": 128, "samples_per_prompt": 8, **rollout},
            "training": {"prompts_per_iteration": prompts, "mini_batch_samples": 8},
        }
    )
    return ranked_plans(request_from(resolve(config), cluster), Choices(strategy="colocated")).best


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_has_a_plan(name):
    predicted = plan_of(name).predicted
    assert predicted.iteration_s > 0
    assert sum(predicted.shares.values()) == pytest.approx(1, abs=0.01)


def test_kto_takes_another_pass_of_reference_and_actor():
    dpo, kto = plan_of("dpo", devices=1), plan_of("kto", devices=1)
    assert kto.placement == dpo.placement
    dpo_s, kto_s = dpo.predicted.stage_s, kto.predicted.stage_s
    assert kto_s["score"] == pytest.approx(2 * dpo_s["score"], rel=1e-6)
    # A training pass with recomputation is four forward passes; ours are cheaper a FLOP.
    assert 1.15 * dpo_s["train"] < kto_s["train"] < 1.35 * dpo_s["train"]


def test_dapo_generates_as_much_as_three_times_the_prompts():
    grpo, more, dapo = plan_of("grpo"), plan_of("grpo", prompts=48), plan_of("dapo")
    generated_s = dapo.predicted.stage_s["generate"]
    assert generated_s == pytest.approx(more.predicted.stage_s["generate"], rel=1e-6)
    assert dapo.predicted.stage_s["train"] == pytest.approx(grpo.predicted.stage_s["train"])
    assert dapo.predicted.samples_per_s == pytest.approx(128 / dapo.predicted.iteration_s)
    once = plan_of("dapo", generated_groups=1)
    assert once.predicted.stage_s == pytest.approx(grpo.predicted.stage_s)
