"""Values from the command line."""

from __future__ import annotations

import pytest

from flexrlhf.config import load_config
from flexrlhf.config.overrides import apply_overrides
from flexrlhf.core.errors import ConfigError


def errors_of(document, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(document, overrides)
    return str(caught.value)


def test_values_are_read_as_yaml(write, ppo):
    config = load_config(
        write(ppo),
        [
            "training.iterations=5",
            "training.learning_rate=3e-5",
            "rollout.top_k = 7",
            "data.prompts.system_prompt=a=b",
            "training.max_grad_norm=",
            "run.trackers=[]",
            "placement.strategy=colocated",
        ],
    )
    assert config.training.iterations == 5
    assert config.training.learning_rate == 3e-5
    assert config.rollout.top_k == 7
    assert config.data.prompts.system_prompt == "a=b"
    assert config.training.max_grad_norm is None
    assert config.run.trackers == ()
    assert config.placement.strategy == "colocated"


def test_the_last_override_wins_and_the_document_stays(ppo):
    changed = apply_overrides(ppo, ["run.seed=1", "run.seed=2"])
    assert changed["run"] == {"seed": 2}
    assert "run" not in ppo


def test_list_entries_go_by_number_and_stages_by_name(stages):
    stages["stages"][2]["reward"] = {"functions": [{"name": "math"}, {"path": "a.py:f"}]}
    changed = apply_overrides(
        stages,
        [
            "stages.ppo.reward.functions.1.weight=0.5",
            "stages.0.training.iterations=4",
            "stages.ppo.reward.functions.0={path: b.py:g}",
        ],
    )
    assert changed["stages"][2]["reward"]["functions"] == [
        {"path": "b.py:g"},
        {"path": "a.py:f", "weight": 0.5},
    ]
    assert changed["stages"][0]["training"] == {"iterations": 4}


def test_what_stages_give_themselves_cannot_be_set_from_the_top(stages):
    text = errors_of(stages, "training.iterations=1")
    assert "the stages ppo give training.iterations themselves" in text
    assert "--set stages.ppo.training.iterations=..." in text
    assert apply_overrides(stages, ["training.threads=1"])["training"]["threads"] == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.iterations", "not of the form KEY=VALUE"),
        ("=5", "not of the form KEY=VALUE"),
        ("training..iterations=5", "not of the form KEY=VALUE"),
        ("training.iterations=[1", "not valid YAML"),
        ("algorithm.name.first=5", 'algorithm.name is "ppo", which has no keys'),
        ("reward.functions.2.weight=1", "no entry '2'. 0 to 0"),
        ("reward.functions.x.weight=1", "no entry 'x'"),
        ("reward.functions.-1.weight=1", "no entry '-1'"),
    ],
)
def test_an_override_that_cannot_be_set_says_why(ppo, override, said):
    ppo["reward"] = {"functions": [{"name": "math"}]}
    text = errors_of(ppo, override)
    assert f"--set {override}" in text
    assert said in text


def test_all_bad_overrides_are_listed(ppo):
    assert "2 problems" in errors_of(ppo, "a", "run.seed=1", "b=[")


def test_a_key_that_does_not_exist_is_found_when_the_config_is_built(write, ppo):
    with pytest.raises(ConfigError, match="Did you mean 'iterations'"):
        load_config(write(ppo), ["training.iteration=5"])
