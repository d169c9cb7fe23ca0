"""Which model answers: a model folder's own, or the last that a run has trained."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.loading import load_policy, load_tokenizer
from flexrlhf.learning.models.saving import save_model
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.runtime.answering import answers, policy_folder


def make_folder(folder: Path, age_s: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    os.utime(folder, (1_000_000 - age_s, 1_000_000 - age_s))
    return folder


def test_a_model_folder_is_its_own(tmp_path):
    folder = make_folder(tmp_path / "model")
    assert policy_folder(folder) == folder


def test_a_run_gives_its_actor(tmp_path):
    actor = make_folder(tmp_path / "model" / "actor")
    make_folder(tmp_path / "model" / "critic")
    assert policy_folder(tmp_path) == actor


def test_a_run_of_stages_gives_the_actor_that_was_trained_last(tmp_path):
    make_folder(tmp_path / "stages" / "sft" / "model" / "actor", age_s=60)
    last = make_folder(tmp_path / "stages" / "ppo" / "model" / "actor")
    make_folder(tmp_path / "stages" / "warm_up" / "model" / "actor", age_s=90)
    assert policy_folder(tmp_path) == last


def test_a_folder_without_a_model(tmp_path):
    (tmp_path / "model" / "reward").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"neither config\.json nor model/actor"):
        policy_folder(tmp_path)


@pytest.fixture
def model_folder(tmp_path, make_document, tokenizer_folder) -> Path:
    architecture = make_document()["model"]["actor"]["architecture"]
    model = load_policy(ModelSource(architecture=architecture, dtype="float32"))
    save_model(model, load_tokenizer(str(tokenizer_folder)), tmp_path / "model")
    return tmp_path / "model"


def test_answers_come_with_their_prompts_and_are_repeatable(model_folder):
    prompts = ["red green", "one two three"]
    options = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    found = answers(model_folder, prompts, **options)
    assert [prompt for prompt, _ in found] == prompts
    assert answers(model_folder, prompts, **options) == found
    others = [answers(model_folder, prompts, **{**options, "seed": seed}) for seed in range(4, 8)]
    assert any(other != found for other in others)


def test_temperature_zero_takes_the_most_likely_token(model_folder):
    found = {
        str(answers(model_folder, ["red"], max_new_tokens=6, temperature=0, seed=seed))
        for seed in range(4)
    }
    assert len(found) == 1


def test_a_runs_policy_gets_its_prompts_as_in_training(tmp_path, make_document, model_folder):
    """The run's config refuses a chat without a template, which this tokenizer lacks."""
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    model_folder.rename(run / "model" / "actor")
    options = {"max_new_tokens": 4, "temperature": 1.0, "seed": 0}
    document = make_document()
    for chat, is_refused in (("never", False), ("always", True)):
        document["data"] = {"prompts": {"path": "rows.jsonl", "chat": chat}}
        (run / "config.yaml").write_text(json.dumps(document))
        if is_refused:
            with pytest.raises(ConfigError, match="template"):
                answers(run, ["red green"], **options)
        else:
            answers(run, ["red green"], **options)


@pytest.mark.parametrize(
    ("prompts", "changes", "said"),
    [
        (
            ["red " * 70],
            {},
            "Prompt 1 has 70 tokens, and its answer may have 4; the model reads 32",
        ),
        (["red", "red " * 31], {"max_new_tokens": 2}, "Prompt 2 has 31 tokens"),
        (["red"], {"max_new_tokens": 32}, "Prompt 1 has 1 tokens, and its answer may have 32"),
        ([""], {}, "the prompt '' has no tokens"),
        ([5], {}, "holds '5'"),
        ([None], {}, "holds 'None'"),
        ([[{"role": "user", "content": "red?"}]], {}, "no chat template"),
        (["red"], {"temperature": -1.0}, "temperature -1.0 is out of range"),
        (["red"], {"temperature": math.nan}, "temperature nan is out of range"),
        (["red"], {"temperature": math.inf}, "temperature inf is out of range"),
    ],
)
def test_what_cannot_be_answered_is_said(model_folder, prompts, changes, said):
    options = {"max_new_tokens": 4, "temperature": 1.0, "seed": 0} | changes
    with pytest.raises(ConfigError) as caught:
        answers(model_folder, prompts, **options)
    assert said in caught.value.wrong
    assert all((caught.value.right, caught.value.do))
