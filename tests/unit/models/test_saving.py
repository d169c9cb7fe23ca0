"""Saved folders: readable by plain transformers, tied weights once, whole or not there."""

from __future__ import annotations

import pytest
import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from flexrlhf.learning.models.exact_norms import make_norms_exact
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.saving import save_model
from flexrlhf.learning.models.source import ModelSource

TOKENS = torch.arange(7)[None]


@pytest.fixture(autouse=True)
def _quiet():
    from flexrlhf.learning.models.quiet import quiet_transformers

    with quiet_transformers():
        yield


def test_plain_transformers_reads_policies(family, make_source, make_tokenizer, tmp_path):
    model = load_policy(make_source(family))
    save_model(model, make_tokenizer(), tmp_path / "policy")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float64)
    make_norms_exact(loaded, torch.float64)
    torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=1e-12)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    assert tokenizer.pad_token == tokenizer.eos_token == "<end>"


def test_loaded_model_computes_the_same_bits(family, make_source, tmp_path):
    for dtype in ("float32", "float64"):
        model = load_policy(make_source(family, dtype=dtype))
        save_model(model, None, tmp_path / dtype)
        loaded = load_policy(ModelSource(path=str(tmp_path / dtype), dtype=dtype))
        torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=0)


def test_plain_transformers_reads_scorers(family, make_source, tmp_path):
    model = load_scorer(make_source(family))
    save_model(model, None, tmp_path / "scorer")
    loaded = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "scorer", dtype=torch.float64
    )
    make_norms_exact(loaded, torch.float64)
    assert loaded.config.num_labels == 1
    torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=1e-12)


def test_plain_transformers_reads_the_trunk_of_a_shared_model(make_source, tmp_path):
    model = SharedActorCritic(load_policy(make_source("llama")))
    save_model(model, None, tmp_path / "shared")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "shared", dtype=torch.float64)
    make_norms_exact(loaded, torch.float64)
    expected = model.trunk(TOKENS).logits
    torch.testing.assert_close(loaded(TOKENS).logits, expected, rtol=0, atol=1e-12)


def test_tied_weights_are_stored_once(family, make_source, tmp_path):
    save_model(load_policy(make_source(family)), None, tmp_path / "policy")
    with safe_open(tmp_path / "policy" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert ("lm_head.weight" in names) == (family == "qwen2")


def test_saved_config_keeps_the_cache_for_generation(make_source, tmp_path):
    save_model(load_policy(make_source("llama")), None, tmp_path / "policy")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert loaded.config.use_cache
    assert loaded.generation_config.use_cache in (None, True)


def test_folder_is_replaced_whole(make_source, make_tokenizer, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("llama", seed=1)), make_tokenizer(), folder)
    save_model(load_policy(make_source("llama", seed=2)), None, folder)
    assert not (folder / "tokenizer.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_full_disk_is_an_oserror(make_source, tmp_path, monkeypatch):
    model = load_policy(make_source("llama"))

    def full(_folder):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(model, None, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
