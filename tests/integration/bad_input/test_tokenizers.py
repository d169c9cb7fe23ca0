"""Tokenizers without a pad or end token, or with one token for both."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest


@pytest.fixture
def tokenizer_with(world, tmp_path) -> Callable[..., str]:
    """Writes the usual tokenizer with other special tokens, and returns its folder."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    def make(**special: str) -> str:
        folder = tmp_path / f"tokenizer-{len(special)}-{special.get('pad_token', 'none')}"
        backend = Tokenizer.from_file(str(world / "tokenizer" / "tokenizer.json"))
        PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
        return str(folder)

    return make


GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 20, "n_embd": 16, "n_layer": 1, "n_head": 2},
    **{"n_positions": 32},
}


@pytest.mark.parametrize("algorithm", ["sft", "reward_model", "dpo", "ppo", "grpo"])
def test_the_pad_token_means_nothing(
    changed, outcome, tokenizer_with, tmp_path, same_metrics, algorithm
):
    """Absent, as in GPT-2, or equal to the end token: masks come from lengths."""
    role = "reward" if algorithm == "reward_model" else "actor"
    rows = []
    for special in (
        {"eos_token": "<end>", "pad_token": "<pad>"},
        {"eos_token": "<end>", "pad_token": "<end>"},
        {"eos_token": "<end>"},
    ):
        keys = {f"model.{role}.tokenizer": tokenizer_with(**special)}
        keys |= {f"model.{role}.architecture": GPT2, "training.iterations": 2}
        outcome(changed(algorithm, keys), 0)
        rows.append(same_metrics(tmp_path / "run"))
        shutil.rmtree(tmp_path / "run")
    assert rows[0] == rows[1] == rows[2]


def test_without_an_end_token_answers_have_full_length(
    changed, outcome, tokenizer_with, tmp_path, samples
):
    keys = {"model.actor.tokenizer": tokenizer_with(pad_token="<pad>")}
    outcome(changed("ppo", keys), 0)
    rows = samples(tmp_path / "run")
    assert {row["response_tokens"] for row in rows} == {6}
    assert not any(row["finished"] for row in rows)


def test_without_an_end_token_there_are_no_answers_to_imitate(changed, outcome, tokenizer_with):
    keys = {"model.actor.tokenizer": tokenizer_with(pad_token="<pad>")}
    assert "has no end token" in outcome(changed("sft", keys), 2)
