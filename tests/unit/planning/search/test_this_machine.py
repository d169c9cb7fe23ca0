"""Plans for this machine: each stage predicted from its profile, or left without a prediction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.core.digits import three_digits
from flexrlhf.core.errors import ConfigError, PlanError
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.search import one_device
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.this_machine import this_machine_plans

ARCHITECTURE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
MODEL = {"init": "random", "architecture": ARCHITECTURE, "tokenizer": "tokenizer"}
DOCUMENT: dict[str, Any] = {
    "algorithm": {"name": "ppo", "epochs": 2},
    "model": {"actor": MODEL, "critic": MODEL, "reward": MODEL},
    "data": {"prompts": {"path": "prompts.jsonl"}, "max_prompt_tokens": 8},
    "rollout": {"max_new_tokens": 24, "samples_per_prompt": 1},
    "training": {"iterations": 2, "prompts_per_iteration": 64, "mini_batch_samples": 32},
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps nvidia-smi out, so that this machine is its cores."""
    monkeypatch.setenv("PATH", str(tmp_path))


def plans_of(**changes: Any):
    return this_machine_plans(resolve(build_config({**DOCUMENT, **changes})))


def test_the_stages_of_an_iteration_add_up():
    (plan,) = plans_of()
    predicted = plan.predicted
    assert predicted is not None
    assert set(predicted.stage_s) == {"generate", "score", "train", "sync"}
    assert sum(predicted.stage_s.values()) == pytest.approx(predicted.iteration_s)
    assert predicted.samples_per_s == pytest.approx(64 / predicted.iteration_s)
    assert sum(predicted.shares.values()) == pytest.approx(1.0)
    assert set(predicted.peak_bytes) == {0}


def test_weights_in_int8_are_in_the_memory_that_is_expected():
    cluster = Cluster.uniform("cpu-core", nodes=1, devices_per_node=1)
    engines = []
    for weights in ("same", "int8"):
        rollout = {**DOCUMENT["rollout"], "weights": weights}
        config = resolve(build_config({**DOCUMENT, "rollout": rollout}))
        engines.append(request_from(config, cluster).engine)
    assert (engines[0].packs_weights, engines[0].rounds_weights) == (True, False)
    assert (engines[1].packs_weights, engines[1].rounds_weights) == (False, True)
    gpus = Cluster.uniform("A100-80G", nodes=1, devices_per_node=1)
    with pytest.raises(ConfigError, match=r"rollout\.weights = int8, but the cluster has A100-80G"):
        request_from(config, gpus)


def test_kept_prefixes_are_in_the_memory_that_is_expected():
    rollout = {**DOCUMENT["rollout"], "kept_prefix_tokens": 4096}
    (plain,), (keeping,) = plans_of(), plans_of(rollout=rollout)
    assert plain.predicted is not None
    assert keeping.predicted is not None
    kept = 4096 * 2 * 2 * 2 * 24 * 4  # layers, keys and values, heads of 24 numbers, float32
    for stage, peak in plain.predicted.peak_bytes[0].items():
        assert keeping.predicted.peak_bytes[0][stage] == pytest.approx(peak + kept, abs=1)
    for device in ("cpu-core", "A100-80G"):
        cluster = Cluster.uniform(device, nodes=1, devices_per_node=1)
        config = resolve(build_config({**DOCUMENT, "rollout": rollout}))
        models = request_from(config, cluster).models
        assert models["actor"].kept_prefix_bytes == kept
        assert models["critic"].kept_prefix_bytes == 0


def test_shorter_answers_are_expected_to_take_less():
    (long,) = plans_of()
    (short,) = plans_of(rollout={**DOCUMENT["rollout"], "mean_new_tokens": 4.0})
    assert long.predicted is not None
    assert short.predicted is not None
    for stage in ("generate", "score", "train"):
        assert short.predicted.stage_s[stage] < long.predicted.stage_s[stage]


def test_a_stage_takes_its_model_from_one_before():
    plans = this_machine_plans(
        resolve(
            build_config(
                {
                    "model": {"actor": MODEL},
                    "data": {"supervised": {"path": "rows.jsonl"}, "max_tokens": 48},
                    "stages": [
                        {"name": "one", "algorithm": {"name": "sft"}},
                        {
                            "name": "two",
                            "algorithm": {"name": "sft"},
                            "model": {"actor": {"path": "stage:one/actor"}},
                        },
                    ],
                }
            )
        )
    )
    first, second = (plan.predicted for plan in plans)
    assert first is not None
    assert second is not None
    assert first.iteration_s == second.iteration_s


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"training": {**DOCUMENT["training"], "precision": "bfloat16"}},
            "the profile was measured in float32, not bfloat16",
        ),
        (
            {"rollout": {**DOCUMENT["rollout"], "engine": "transformers"}},
            "profiles measure the engine native, not transformers",
        ),
        ({"model": {**DOCUMENT["model"], "actor": {"path": "hub:some/model"}}}, "model.actor.path"),
    ],
)
def test_what_the_profile_cannot_say_is_not_said_and_why(changes, reason):
    (plan,) = plans_of(**changes)
    assert plan.predicted is None
    assert plan.feasible
    assert f"Its time is not predicted: {reason}" in plan.why


def test_a_plan_says_what_its_stages_take():
    (plan,) = plans_of()
    assert plan.predicted is not None
    words = {"generate": "generation", "score": "scoring", "train": "training"}
    for stage, word in words.items():
        assert f"{word} {three_digits(plan.predicted.stage_s[stage])} s" in plan.why


def test_models_larger_than_the_machine_are_refused_with_what_they_need():
    large = {**MODEL, "architecture": {**ARCHITECTURE, "hidden_size": 96 * 1024}}
    with pytest.raises(PlanError) as caught:
        plans_of(model={"actor": large, "critic": large, "reward": large})
    wrong, right, do = str(caught.value).splitlines()
    needed, held = re.findall(r"([\d,]+\.\d) GiB", wrong)
    assert wrong.startswith("No placement of ppo fits: ")
    assert float(needed.replace(",", "")) > float(held.replace(",", ""))
    assert "fit into its memory" in right
    assert "smaller models" in do


def test_a_trial_step_on_a_cpu_goes_as_far_as_the_planner_thinks():
    memory = pytest.importorskip("flexrlhf.learning.training.micro_batch")
    assert memory.CPU_TOKENS == one_device.CPU_TOKENS


def test_passes_that_only_some_algorithms_have_take_their_time_here_too():
    pairs: dict[str, Any] = {
        "model": {"actor": MODEL},
        "data": {"preferences": {"path": "pairs.jsonl"}, "max_tokens": 32},
        "rollout": {},
    }
    dpo, kto = (plans_of(algorithm={"name": n}, **pairs)[0].predicted for n in ("dpo", "kto"))
    assert kto.stage_s["score"] == pytest.approx(2 * dpo.stage_s["score"])
    assert kto.stage_s["train"] > dpo.stage_s["train"]
    groups = {"max_new_tokens": 24, "samples_per_prompt": 2}
    prompts: dict[str, Any] = {"model": {"actor": MODEL, "reward": MODEL}, "rollout": groups}
    usual, resampled = (
        plans_of(algorithm={"name": n, "kl_coef": 0.1}, **prompts)[0].predicted
        for n in ("gspo", "dapo")
    )
    assert resampled.stage_s["generate"] == pytest.approx(3 * usual.stage_s["generate"], rel=0.01)
