"""Tiny models of every tested family, and a tokenizer."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from flexrlhf.learning.data.experience import Batch, collate_sequences
from flexrlhf.learning.models.source import ModelSource

VOCABULARY = 61

_LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
ARCHITECTURES = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True, **_LLAMA_LIKE},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": False, **_LLAMA_LIKE},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 8, **_LLAMA_LIKE},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.2,
    },
    "cohere": {
        "model_type": "cohere",
        "logit_scale": 0.25,
        "tie_word_embeddings": True,
        **_LLAMA_LIKE,
    },
    "granite": {
        "model_type": "granite",
        "logits_scaling": 3.0,
        "tie_word_embeddings": True,
        **_LLAMA_LIKE,
    },
    "gemma2": {"model_type": "gemma2", "head_dim": 8, **_LLAMA_LIKE},
    "mistral": {"model_type": "mistral", **_LLAMA_LIKE},
}
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_source():
    def make(family: str, *, dtype: str = "float64", seed: int = 0, **keys) -> ModelSource:
        architecture = {**ARCHITECTURES[family], **keys}
        return ModelSource(architecture=architecture, dtype=dtype, seed=seed)

    return make


@pytest.fixture
def make_batch():
    """Random sequences of the given lengths; the first third of each is its prompt."""

    def make(lengths: tuple[int, ...] = (9, 14, 5), seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        tokens = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]
        masks = [torch.arange(length) >= length // 3 for length in lengths]
        return collate_sequences(tokens, masks)

    return make


@pytest.fixture
def make_tokenizer():
    def make(words: tuple[str, ...] = ("red", "green", "blue")) -> PreTrainedTokenizerFast:
        ids = {word: index for index, word in enumerate(("<unk>", "<end>", *words))}
        backend = Tokenizer(WordLevel(ids, unk_token="<unk>"))
        backend.pre_tokenizer = Whitespace()
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
        )

    return make
