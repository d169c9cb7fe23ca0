"""The rows of a run: held-out ones in the form of those that are trained on."""

from __future__ import annotations

import json

import pytest

from flexrlhf.config.data import Data
from flexrlhf.core.errors import DataError
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.learning.rewards.catalogue import load_reward
from flexrlhf.runtime.datasets import load_data

TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


@pytest.fixture
def tokenizer(tokenizer_folder):
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def paths(tmp_path):
    """Paths of training and of held-out rows, whose prompt is in column `asked`."""
    for name, numbers in {"rows": range(4), "held_out": range(4, 7)}.items():
        lines = (json.dumps({"asked": "red green", "answer": number}) for number in numbers)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return {"path": str(tmp_path / "rows.jsonl")}, {"path": str(tmp_path / "held_out.jsonl")}


def test_held_out_prompts_are_made_as_the_training_prompts_are(tokenizer, paths):
    training, held_out = paths
    training |= {"prompt_column": "asked", "chat": "always", "system_prompt": "two"}
    section = Data.model_validate({"prompts": training, "evaluation": {**held_out, "samples": 2}})
    data = load_data(section, "prompts", tokenizer)
    assert [prompt.columns["answer"] for prompt in data.evaluation] == [4, 5]
    assert data.training[0].text == "system two user red green "
    assert {prompt.text for prompt in data.evaluation} == {data.training[0].text}


def test_held_out_prompts_may_have_a_form_of_their_own(tokenizer, paths):
    training, held_out = paths
    training |= {"prompt_column": "asked", "chat": "always"}
    held_out["chat"] = "never"
    section = Data.model_validate({"prompts": training, "evaluation": held_out})
    data = load_data(section, "prompts", tokenizer)
    assert data.training[0].text == "user red green "
    assert data.evaluation[0].text == "red green"


@pytest.mark.parametrize("kind", ["prompts", "evaluation"])
def test_a_row_without_an_answer_is_found_in_either_set(tokenizer, paths, tmp_path, kind):
    training, held_out = paths
    (tmp_path / "bare.jsonl").write_text('{"asked": "red"}')
    section = {"prompts": {**training, "prompt_column": "asked"}, "evaluation": held_out}
    section[kind]["path"] = str(tmp_path / "bare.jsonl")
    with pytest.raises(DataError, match=r"bare\.jsonl.* 'math' needs column 'answer'"):
        load_data(Data.model_validate(section), "prompts", tokenizer, [load_reward("math")])
