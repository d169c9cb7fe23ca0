"""A model's shape from the head of its GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.gguf_header import GgufHeader, read_gguf_header
from flexrlhf.planning.costs.hugging_face_config import shape_of_config
from flexrlhf.planning.costs.shape import ModelShape

_FAMILIES: Final = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gpt2": "gpt2",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "starcoder2": "starcoder2",
}
"""Dense families by the file's `general.architecture`."""
_KEYS: Final = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}
"""Config keys by what follows the family's name. Source: docs/gguf.md of ggml."""
_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"


def shape_of_gguf(file: Path) -> ModelShape:
    """Returns the shape of the model in a GGUF file, as it is once its weights are unpacked.

    Raises:
        ConfigError: the file is damaged, of a family that is not known, or has experts.
    """
    header = read_gguf_header(file)
    family = header.metadata.get("general.architecture")
    if family not in _FAMILIES or f"{family}.expert_count" in header.metadata:
        kind = f"{family} with experts" if family in _FAMILIES else family
        raise ConfigError(
            f"{file} holds a model of the family {kind!r}.",
            f"Shapes are read from GGUF files of the dense families {', '.join(_FAMILIES)}.",
            "Give the model's Hugging Face folder, or a shape.",
        )
    if len(header.tensors.get(_EMBEDDING, ())) != 2:
        raise ConfigError(
            f"{file} has no matrix {_EMBEDDING}.",
            "A GGUF file holds the whole model.",
            "Download the file again.",
        )
    return shape_of_config(_config(header, family), file.stem, where=str(file))


def _config(header: GgufHeader, family: str) -> dict[str, Any]:
    """Returns the keys of the config.json that the file was made from."""
    document: dict[str, Any] = {
        key: header.metadata[f"{family}.{own}"]
        for own, key in _KEYS.items()
        if f"{family}.{own}" in header.metadata
    }
    tensors = header.tensors
    return document | {
        "model_type": _FAMILIES[family],
        "vocab_size": tensors[_EMBEDDING][1],
        # GPT-2's head is its embedding, which llama.cpp writes twice.
        "tie_word_embeddings": _HEAD not in tensors or family == "gpt2",
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
    }
