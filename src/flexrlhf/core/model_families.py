"""Which model families can be split how: what is planned must be what can be loaded."""

from __future__ import annotations

from typing import Final

TENSOR_PARALLEL_FAMILIES: Final = ("llama", "qwen2", "qwen3")
"""Families, by `model_type`, with separate projections for queries, keys and values, and a gated
MLP: their layers are cut by heads."""
STAGED_FAMILIES: Final = (*TENSOR_PARALLEL_FAMILIES, "gpt2")
"""Families that are cut into pipeline stages."""
NATIVE_FAMILIES: Final = STAGED_FAMILIES
"""Families that the native engine decodes."""
