from __future__ import annotations

import copy

import pytest

from flexrlhf.report.batch_words import batch_words

CONFIG = {
    "algorithm": {"name": "grpo", "epochs": 2},
    "data": {"max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 32, "samples_per_prompt": 4},
    "training": {
        "iterations": 5,
        "prompts_per_iteration": 6,
        "mini_batch_samples": 8,
        "micro_batch_tokens": 2048,
        "micro_batch_samples": None,
    },
}


def values(config) -> dict[str, str]:
    return {word: value for word, value, _ in batch_words(config)}


def test_every_word_has_this_runs_number():
    assert values(CONFIG) == {
        "prompts per iteration": "6",
        "samples per prompt": "4",
        "samples per iteration": "24",
        "mini-batch": "8",
        "mini-batches per epoch": "3",
        "epochs": "2",
        "optimiser steps per iteration": "6",
        "optimiser steps of the run": "30",
        "micro-batch": "2\u202f048 tokens",
        "longest prompt": "64 tokens",
        "longest answer": "32 tokens",
    }


def test_rows_that_are_trained_on_directly_have_no_prompts_and_answers():
    config = copy.deepcopy(CONFIG) | {"algorithm": {"name": "sft", "epochs": 2}}
    config["training"]["mini_batch_samples"] = 3
    found = values(config)
    assert "prompts per iteration" not in found
    assert "longest answer" not in found
    assert found["samples per iteration"] == "6"
    assert found["optimiser steps of the run"] == "20"


@pytest.mark.parametrize(
    ("tokens", "samples", "words"),
    [("auto", None, "auto: a trial step finds its tokens"), ("auto", 3, "3 samples")],
)
def test_a_micro_batch_that_is_not_measured_yet_or_counted_in_samples(tokens, samples, words):
    config = copy.deepcopy(CONFIG)
    config["training"] |= {"micro_batch_tokens": tokens, "micro_batch_samples": samples}
    assert values(config)["micro-batch"] == words


@pytest.mark.parametrize("damage", [None, "many", 0, -1])
def test_a_config_that_does_not_tell_has_no_words_for_it(damage):
    config = copy.deepcopy(CONFIG)
    config["training"]["mini_batch_samples"] = damage
    found = values(config)
    assert "samples per iteration" in found
    assert "optimiser steps per iteration" not in found


def test_an_empty_config_has_no_words():
    assert batch_words({}) == []
