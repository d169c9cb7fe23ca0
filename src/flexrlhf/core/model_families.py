"""What is done with which model families: what is planned must be what is loaded and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

TENSOR_PARALLEL_FAMILIES: Final = ("llama", "qwen2", "qwen3")
"""Families, by `model_type`, with separate projections for queries, keys and values, and a gated
MLP: their layers are cut by heads."""
STAGED_FAMILIES: Final = (*TENSOR_PARALLEL_FAMILIES, "gpt2")
"""Families that are cut into pipeline stages."""
NATIVE_FAMILIES: Final = STAGED_FAMILIES
"""Families that the native engine decodes."""
PACKED_FAMILIES: Final = NATIVE_FAMILIES
"""Families whose layers are run over packed tokens where a process has all of them whole."""

_GRADIENTS_SHARDED: Final = 2
_WEIGHTS_SHARDED: Final = 3
_ROTATIONS: Final = ("default", "linear", "llama3", "yarn")
"""Rotary positions that do not change with the length."""


def unusual_feature(config: Mapping[str, Any]) -> str | None:
    """Returns what a model of `NATIVE_FAMILIES` does that its layers, run by us, would not.

    Args:
        config: keys of a Hugging Face config; what they leave out is as usual.
    """
    if config.get("add_cross_attention"):
        return "cross-attention"
    if config.get("reorder_and_upcast_attn"):
        return "reorder_and_upcast_attn"
    if _slides(config):
        return "sliding-window attention"
    rotation = _rotation(config)
    if rotation not in _ROTATIONS:
        return f"{rotation!r} rotary positions, which change with the length"
    return None


def is_sharded(zero_stage: int, num_shards: int, *, trains: bool) -> bool:
    """Says whether a role's processes hold parts of its parameters, so that passes gather them.

    Args:
        zero_stage: 2 shards gradients, 3 weights too.
        num_shards: processes that share them.
        trains: whether there are gradients; a frozen model is sharded by stage 3 alone.
    """
    return num_shards > 1 and zero_stage >= (_GRADIENTS_SHARDED if trains else _WEIGHTS_SHARDED)


def _slides(config: Mapping[str, Any]) -> bool:
    kinds = config.get("layer_types")
    if kinds:
        return any(kind != "full_attention" for kind in kinds)
    # Qwen's own spelling, from which transformers derives the kinds.
    return bool(
        config.get("use_sliding_window")
        and config.get("sliding_window", 1)
        and config.get("max_window_layers", 0) < config.get("num_hidden_layers", 1)
    )


def _rotation(config: Mapping[str, Any]) -> str:
    said: Any = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(said, Mapping):
        return "default"
    rotation = cast("Mapping[str, Any]", said)
    return str(rotation.get("rope_type") or rotation.get("type") or "default")
