"""What auto stands for, and the quantities that follow from a config."""

from __future__ import annotations

import pytest

from flexrlhf.config import (
    BatchSizes,
    batch_sizes,
    build_config,
    dump_config,
    resolve,
    role_origin,
    samples_per_iteration,
    settled,
    spec_of,
)
from flexrlhf.config.yaml_text import parse_yaml


def test_ppo(ppo):
    config = resolve(build_config(ppo))
    algorithm = config.algorithm
    assert (algorithm.kl_placement, algorithm.kl_estimator) == ("reward", "k1")
    assert (algorithm.clip_high, algorithm.advantage_epsilon) == (0.2, 1e-8)
    assert algorithm.loss_aggregation == "token_mean"
    assert config.training.mini_batch_samples == 64
    assert config.training.learning_rate == 1e-6
    assert config.rollout.max_sequences == 64
    assert config.rollout.gap_alarm == 1e-4


def test_grpo(grpo):
    grpo["algorithm"]["clip"] = 0.1
    grpo["rollout"] = {"micro_batches": 3}
    config = resolve(build_config(grpo))
    algorithm = config.algorithm
    assert (algorithm.kl_placement, algorithm.kl_estimator) == ("loss", "k3")
    assert (algorithm.clip_high, algorithm.advantage_epsilon) == (0.1, 1e-4)
    assert config.rollout.max_sequences == 24  # the largest part of 16 prompts in 3, times 4


@pytest.mark.parametrize(
    ("placement", "estimator"), [("loss", "k3"), ("reward", "k1"), ("auto", "k1")]
)
def test_the_estimator_follows_the_placement(ppo, placement, estimator):
    ppo["algorithm"]["kl_placement"] = placement
    assert resolve(build_config(ppo)).algorithm.kl_estimator == estimator


def test_what_is_given_stays(ppo):
    ppo["algorithm"] |= {"kl_estimator": "k2", "clip_high": 0.3, "advantage_epsilon": 1e-6}
    ppo["training"] = {"learning_rate": 1e-4, "mini_batch_samples": 16}
    config = resolve(build_config(ppo))
    assert config.algorithm.kl_estimator == "k2"
    assert (config.algorithm.clip_high, config.algorithm.advantage_epsilon) == (0.3, 1e-6)
    assert (config.training.learning_rate, config.training.mini_batch_samples) == (1e-4, 16)


def test_the_gap_alarm_is_wider_in_bfloat16(ppo):
    ppo["training"] = {"precision": "bfloat16"}
    assert resolve(build_config(ppo)).rollout.gap_alarm == 2e-2


def test_only_measured_values_stay_auto(ppo, grpo, stages):
    for document in (ppo, grpo, stages):
        for _, config in resolve(build_config(document)).stage_configs():
            text = dump_config(config)
            left = {line.split(":")[0].strip() for line in text.splitlines() if ": auto" in line}
            assert left - {"chat", "prompt_column"} == {
                "micro_batch_tokens",
                "threads",
                "cluster",
                "placement",
            }


def test_resolving_twice_changes_nothing_and_the_result_loads_back(ppo, grpo, stages):
    for document in (ppo, grpo, stages):
        once = resolve(build_config(document))
        assert resolve(once) == once
        assert build_config(parse_yaml(dump_config(once), "dump")) == once


def test_each_stage_is_resolved_by_its_own_algorithm(stages):
    named = dict(resolve(build_config(stages)).stage_configs())
    assert [stage.training.learning_rate for stage in named.values()] == [1e-5, 1e-5, 1e-6]
    assert [stage.training.mini_batch_samples for stage in named.values()] == [16, 16, 64]


def test_batch_sizes(ppo):
    ppo["training"] = {"mini_batch_samples": 16, "iterations": 5}
    ppo["algorithm"]["epochs"] = 2
    config = build_config(ppo)
    assert samples_per_iteration(config) == 64
    sizes = batch_sizes(config)
    assert sizes == BatchSizes(64, mini_batch_samples=16, epochs=2, iterations=5)
    assert (sizes.num_mini_batches, sizes.steps_per_iteration, sizes.num_steps) == (4, 8, 40)


def test_where_roles_come_from(ppo):
    config = build_config(ppo)
    assert role_origin(config, "actor").model.path == "models/actor"
    reference = role_origin(config, "reference")
    assert (reference.role, reference.model) == ("actor", config.model.actor)
    critic = role_origin(config, "critic")
    assert (critic.role, critic.model) == ("reward", config.model.reward)


def test_a_critic_without_a_reward_model_starts_from_the_actor(ppo):
    del ppo["model"]["reward"]
    ppo["reward"] = {"functions": [{"name": "math"}]}
    config = build_config(ppo)
    assert role_origin(config, "critic").role == "actor"
    assert role_origin(config, "reward") is None


def test_the_reference_takes_part_if_kl_costs_or_it_is_named(ppo):
    assert "reference" in spec_of(build_config(ppo)).roles
    ppo["algorithm"]["kl_coef"] = 0
    assert "reference" not in spec_of(build_config(ppo)).roles
    ppo["model"]["reference"] = {"path": "models/actor"}
    assert "reference" in spec_of(build_config(ppo)).roles


@pytest.mark.parametrize(
    ("section", "keys", "is_scored"),
    [
        ("training", {}, False),
        ("training", {"mini_batch_samples": 128}, False),
        ("training", {"mini_batch_samples": 64}, True),
        ("algorithm", {"epochs": 2}, True),
        ("algorithm", {"kl_coef": 0.1}, False),
        ("algorithm", {"kl_coef": 0.1, "kl_placement": "reward"}, True),
        ("algorithm", {"kl_coef": 0.1, "epochs": 2}, True),
        ("weights", {"max_staleness": 1}, True),
        ("algorithm", {"name": "ppo"}, True),
    ],
)
def test_the_actor_scores_its_answers_where_its_weights_change_or_something_asks(
    grpo, section, keys, is_scored
):
    grpo["algorithm"] |= {"kl_coef": 0.0}
    grpo["training"] = {"prompts_per_iteration": 16}
    grpo["rollout"] = {"samples_per_prompt": 8}
    grpo.setdefault(section, {}).update(keys)
    config = build_config(grpo)
    assert spec_of(config).scores_actor is is_scored
    assert spec_of(resolve(config)) == spec_of(config)


def test_auto_is_not_settled():
    assert settled(3) == 3
    with pytest.raises(AssertionError, match="not resolved"):
        settled("auto")


@pytest.mark.parametrize(
    ("name", "kl_coef", "placement", "has_reference"),
    [
        ("ppo", 0.05, "reward", True),
        ("grpo", 0.05, "loss", True),
        ("dr_grpo", 0.0, "loss", False),
        ("rloo", 0.05, "reward", True),
        ("reinforce_pp", 0.05, "reward", True),
        ("reinforce_pp_baseline", 0.05, "loss", True),
        ("gspo", 0.05, "loss", True),
        ("dapo", 0.0, "loss", False),
    ],
)
def test_auto_kl_follows_the_algorithm(ppo, name, kl_coef, placement, has_reference):
    ppo["algorithm"]["name"] = name
    config = build_config(ppo)
    assert ("reference" in spec_of(config).roles) is has_reference
    resolved = resolve(config)
    assert (resolved.algorithm.kl_coef, resolved.algorithm.kl_placement) == (kl_coef, placement)
    assert spec_of(resolved) == spec_of(config)
    assert (
        "reference"
        in spec_of(build_config({**ppo, "algorithm": {"name": name, "kl_coef": 1}})).roles
    )


@pytest.mark.parametrize(("name", "rate"), [("dpo", 1e-6), ("kto", 1e-6), ("rloo", 1e-6)])
def test_auto_learning_rates_of_what_is_not_built(ppo, name, rate):
    document = {"algorithm": {"name": name}, "model": {"actor": {"shape": "llama-7b"}}}
    if name == "rloo":
        document["reward"] = {"functions": [{"name": "math"}]}
    config = resolve(build_config(document))
    assert config.training.learning_rate == rate
    assert samples_per_iteration(config) == (64 if spec_of(config).generates else 16)


def test_a_reward_function_is_no_model(grpo):
    assert spec_of(build_config(grpo)).functions == ("reward",)
    grpo["model"]["reward"] = {"path": "models/reward"}
    assert spec_of(build_config(grpo)).functions == ()


@pytest.mark.parametrize(
    ("weights", "given", "level"),
    [
        ("same", "auto", "none"),
        ("int8", "auto", "token"),
        ("int8", "none", "none"),
        ("same", "sequence", "sequence"),
    ],
)
def test_what_another_policy_drew_is_weighed(grpo, weights, given, level):
    grpo["rollout"] = {"weights": weights}
    grpo["algorithm"]["importance"] = given
    resolved = resolve(build_config(grpo))
    assert resolved.algorithm.importance == level
    assert resolved.algorithm.importance_cap == 2.0
    assert resolved.rollout.gap_alarm == (5.0 if weights == "int8" else 1e-4)
