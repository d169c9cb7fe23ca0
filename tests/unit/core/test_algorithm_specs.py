from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import BUILT, ScoreStep, algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import ALGORITHMS, in_order, kind_of, labelled

NEEDS = {
    # name: (data, trained, frozen, generates, compares the answers to one prompt)
    "ppo": ("prompts", {"actor", "critic"}, {"reference", "reward"}, True, False),
    "grpo": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "dr_grpo": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "rloo": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "reinforce_pp": ("prompts", {"actor"}, {"reference", "reward"}, True, False),
    "reinforce_pp_baseline": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "gspo": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "dapo": ("prompts", {"actor"}, {"reference", "reward"}, True, True),
    "dpo": ("preferences", {"actor"}, {"reference"}, False, False),
    "ipo": ("preferences", {"actor"}, {"reference"}, False, False),
    "kto": ("preferences", {"actor"}, {"reference"}, False, False),
    "sft": ("supervised", {"actor"}, set(), False, False),
    "reward_model": ("preferences", {"reward"}, set(), False, False),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_each_algorithm_needs(name):
    spec = algorithm_spec(name)
    found = (spec.data, set(spec.trained), set(spec.frozen), spec.generates, spec.has_groups)
    assert found == NEEDS[name]
    assert spec.name == name
    assert spec.models == spec.roles


def test_scoring_passes():
    assert algorithm_spec("ppo").scored == (
        ScoreStep("actor", "logprobs"),
        ScoreStep("critic", "values"),
        ScoreStep("reference", "logprobs"),
        ScoreStep("reward", "rewards"),
    )
    assert algorithm_spec("dpo").scored == (ScoreStep("reference", "logprobs"),)
    shared = algorithm_spec("ppo", share_actor_critic=True)
    assert "critic" not in shared.roles
    assert shared.shares_trunk


def test_kto_looks_at_mismatched_answers_once_more():
    spec = algorithm_spec("kto")
    reference = ScoreStep("reference", "logprobs")
    assert spec.scored == (reference, ScoreStep("reference", "logprobs", is_mismatched=True))
    assert spec.trains_with_mismatched
    others = [algorithm_spec(name) for name in ALGORITHMS if name != "kto"]
    assert not any(other.trains_with_mismatched for other in others)


def test_dapo_generates_more_groups_than_it_trains_on():
    assert {n: algorithm_spec(n).generated_groups for n in ALGORITHMS if n != "dapo"} == (
        dict.fromkeys(set(ALGORITHMS) - {"dapo"}, 1.0)
    )
    assert algorithm_spec("dapo").generated_groups == 3.0
    assert algorithm_spec("dapo", generated_groups=1.5).generated_groups == 1.5


@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo"])
def test_without_kl_there_is_no_reference(name):
    assert "reference" not in algorithm_spec(name, uses_reference=False).roles


def test_preferences_always_need_a_reference():
    assert "reference" in algorithm_spec("dpo", uses_reference=False).roles


def test_reward_functions_are_no_model():
    spec = algorithm_spec("grpo", has_reward_model=False)
    assert spec.roles == ("actor", "reference", "reward")
    assert spec.models == ("actor", "reference")
    assert spec.frozen == ("reference",)


def test_what_is_built_is_known():
    assert set(BUILT) <= set(ALGORITHMS)


@pytest.mark.parametrize(("name", "said"), [("pop", "Did you mean 'ppo'?"), ("", "'' is unknown.")])
def test_unknown_names(name, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        algorithm_spec(name)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ppo"])
def test_only_ppo_has_a_trunk_to_share(name):
    with pytest.raises(ConfigError, match="has no critic"):
        algorithm_spec(name, share_actor_critic=True)


def test_several_models_of_one_role_have_labels():
    safety = labelled("reward", "safety")
    assert safety == "reward:safety"
    assert kind_of(safety) == kind_of("reward") == "reward"
    assert in_order(["shadow_actor", safety, "reward", "actor"]) == (
        "actor",
        safety,
        "reward",
        "shadow_actor",
    )
