"""What a training run reads has to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexrlhf.config import build_config, require_files
from flexrlhf.core.errors import ConfigError


def test_everything_that_is_missing_is_listed(ppo, tmp_path: Path):
    (tmp_path / "models" / "reward").mkdir(parents=True)
    ppo["reward"] = {"functions": [{"path": "my_rewards.py:score"}]}
    ppo["model"]["actor"]["tokenizer"] = "tokens"
    with pytest.raises(ConfigError) as caught:
        require_files(build_config(ppo, folder=tmp_path), "run.yaml")
    text = str(caught.value)
    assert text.startswith("run.yaml: 4 problems.")
    assert '- model.actor.path = "models/actor": does not exist.' in text
    assert "A model of the hub is written hub:ORG/NAME." in text
    assert '- model.actor.tokenizer = "tokens": does not exist.' in text
    assert '- data.prompts.path = "data/prompts.jsonl": does not exist.' in text
    assert '- reward.functions.0.path = "my_rewards.py": does not exist.' in text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("x" * 5000, "cannot be found: File name too long."),
        ("~nobody-of-this-name/x.jsonl", "is no path: Could not determine home directory."),
        ("a\0b", "is no path: embedded null byte."),
    ],
)
def test_what_can_be_no_path_is_said(ppo, tmp_path: Path, path, said):
    ppo["data"]["prompts"]["path"] = path
    with pytest.raises(ConfigError) as caught:
        require_files(build_config(ppo, folder=tmp_path))
    assert said in str(caught.value)


def test_a_complete_run_passes(grpo, tmp_path: Path):
    (tmp_path / "models" / "actor").mkdir(parents=True)
    require_files(build_config(grpo, folder=tmp_path))


def test_models_of_the_hub_and_generated_rows_are_no_files(grpo):
    grpo["model"]["actor"] = {"path": "hub:ORG/NAME", "tokenizer": "hub:ORG/NAME"}
    require_files(build_config(grpo))


def test_a_shape_is_not_enough_to_train(grpo):
    grpo["model"]["actor"] = {"shape": "llama-7b"}
    with pytest.raises(ConfigError, match=r"model\.actor: only a shape, which is enough to plan"):
        require_files(build_config(grpo))


def test_stages_are_checked_under_their_names(stages):
    with pytest.raises(ConfigError) as caught:
        require_files(build_config(stages))
    text = str(caught.value)
    assert "stages.sft.model.actor.path" in text
    assert "stages.rm.model.reward.path" not in text
