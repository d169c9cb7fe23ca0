"""Bytes of one process while it generates, scores and trains, beside what its models hold.

Activations are counted as PyTorch's autograd saves them in a Llama: of each norm what it makes of
its input and what the weights make of that, in layers of `transformers` the input too; queries,
keys, values, and what attention gives; of the gated MLP gate, activation, up and product. Packed
tokens are copied to where attention is computed, and what it gives is copied back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.core.packed_rows import PackedRows
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.profiled.batches import Bin
from flexrlhf.planning.costs.profiled.constants import MemoryConstants
from flexrlhf.planning.costs.shape import ModelShape

CHUNK_TOKENS: Final = 1024
"""Positions whose logits are alive at once."""
_SCORED_LOGITS: Final = 3
"""Tensors as large as the logits while log-probs are computed: logits, divided, softmax."""
_DRAWN_LOGIT_BYTES: Final = 28
"""Bytes per logit while a token is drawn: three float32 and two float64 numbers."""
_LOGIT_BYTES: Final = 4
_CACHE_GROWTH: Final = 128
"""Tokens for which a cache has room behind the prompts, before it grows."""
_OF_PLAIN_MLP: Final = 5
"""Tensors as wide as the inside of an MLP without gate that it keeps: its activation, GPT-2's by
tanh, is a chain of operations in `transformers`."""
_MOST_HELD_BY_LAYER: Final = 3
"""Tensors as wide as the MLP's inside that a forward pass without gradients holds at once."""


def train_bytes(
    model: HeldModel,
    part: Bin,
    memory: MemoryConstants,
    *,
    is_first: bool,
    read: PackedRows | None = None,
) -> float:
    """Returns the most that a forward and backward pass adds, gradients included.

    The pass that makes a gradient holds it only where activations were before; a later one of the
    same step holds it from its beginning.

    Args:
        model: that is trained.
        part: what the pass is over.
        memory: of the process.
        is_first: whether it is the step's first pass.
        read: what layers of our own read; None: the model runs its own, with all padding.
    """
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    layers = 1 if model.recomputes else shape.layers
    tokens = part.tokens if read is None else read.num_tokens
    values = layers * (tokens * _saved_values(shape) + _attention_values(shape, tokens, read))
    values += tokens * _norm_values(shape)  # of the norm behind the last layer
    values += part.responses * shape.hidden  # what the head reads of it
    if model.recomputes:
        values += tokens * shape.layers * shape.hidden
    activations = values * width * (1 + memory.overhead)
    if model.has_vocabulary_head:
        alive = min(part.responses, CHUNK_TOKENS)
        activations += alive * shape.vocab * _LOGIT_BYTES * memory.logit_copies
    table = shape.embedding_params * DTYPE_BYTES[model.weight_dtype]
    if not is_first:
        return activations + model.gradient_bytes
    begun = activations + (table if model.has_vocabulary_head else 0.0)
    return max(begun, model.gradient_bytes + activations / max(layers, 1))


def score_bytes(model: HeldModel, part: Bin, *, read: PackedRows | None = None) -> float:
    """Returns the most that a pass without gradients adds; see `train_bytes`."""
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    inside = _MOST_HELD_BY_LAYER * max(shape.ffn, shape.hidden) + 2 * shape.hidden
    added = (part.tokens if read is None else read.num_tokens) * inside * width
    if model.has_vocabulary_head:
        alive = min(part.responses, CHUNK_TOKENS)
        added += alive * shape.vocab * _LOGIT_BYTES * _SCORED_LOGITS
    return added


def generation_bytes(model: HeldModel, rows: int, longest_prompt: float, most_new: int) -> float:
    """Returns the most that generation adds: cache, and logits from which tokens are drawn."""
    shape = model.shape
    room = longest_prompt + min(most_new, _CACHE_GROWTH)
    held = max(room, longest_prompt + most_new)  # a longer answer makes the cache grow
    cache = rows * held * shape.cache_values_per_token * DTYPE_BYTES[model.compute_dtype]
    return cache + rows * shape.vocab * _DRAWN_LOGIT_BYTES


def in_processes(calibration: Calibration, memory: MemoryConstants) -> Calibration:
    """Returns constants by which devices that are processes hold what was measured of one.

    Args:
        calibration: of the class of hardware.
        memory: of a process.
    """
    return replace(
        calibration,
        held_bytes=round(memory.process_bytes),
        fragmentation=0.0,
        activation_overhead=memory.overhead,
        logit_bytes=_LOGIT_BYTES * memory.logit_copies,
    )


def _saved_values(shape: ModelShape) -> float:
    """Numbers per token that one layer keeps for its backward pass, beside those of attention."""
    active = shape.experts_per_token + shape.shared_experts
    inside = shape.expert_ffn * active if shape.experts else shape.ffn
    return 2 * _norm_values(shape) + (4 if shape.gated_mlp else _OF_PLAIN_MLP) * inside


def _norm_values(shape: ModelShape) -> float:
    """Numbers per token that a norm keeps."""
    return (2 if shape.packs else 3) * shape.hidden


def _attention_values(shape: ModelShape, tokens: float, read: PackedRows | None) -> float:
    """Numbers that one layer keeps of attention: queries, keys, values and what comes out."""
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if read is None:
        return 2 * tokens * (heads + kv_heads)
    kept = 2 * (read.num_query_slots * heads + read.num_key_slots * kv_heads)
    has_gaps, has_copies = read.num_query_slots > tokens, read.num_key_slots > tokens
    if has_gaps or len(read.parts) > 1:
        kept += tokens * heads
    if shape.family == "gpt2" and has_copies and not has_gaps:
        kept += 2 * tokens * kv_heads  # queries are a part of one product with keys and values
    return kept
