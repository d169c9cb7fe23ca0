"""Bytes of one process while it generates, scores and trains, beside what its models hold.

Activations are counted as PyTorch's autograd saves them in a Llama of `transformers`: of each norm
its input, what it makes of it and what the weights make of that; queries, keys, values, and what
attention gives; of the gated MLP gate, activation, up and product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

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
_MOST_HELD_BY_LAYER: Final = 3
"""Tensors as wide as the MLP's inside that a forward pass without gradients holds at once."""


def train_bytes(model: HeldModel, part: Bin, memory: MemoryConstants, *, is_first: bool) -> float:
    """Returns the most that a forward and backward pass adds, gradients included.

    The pass that makes a gradient holds it only where activations were before; a later one of the
    same step holds it from its beginning.
    """
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    layers = 1 if model.recomputes else shape.layers
    saved = part.tokens * layers * _saved_values(shape) * width
    if model.recomputes:
        saved += part.tokens * shape.layers * shape.hidden * width
    activations = saved * (1 + memory.overhead)
    if model.has_vocabulary_head:
        alive = min(part.responses, CHUNK_TOKENS)
        activations += alive * shape.vocab * _LOGIT_BYTES * memory.logit_copies
    table = shape.embedding_params * DTYPE_BYTES[model.weight_dtype]
    if not is_first:
        return activations + model.gradient_bytes
    begun = activations + (table if model.has_vocabulary_head else 0.0)
    return max(begun, model.gradient_bytes + activations / max(layers, 1))


def score_bytes(model: HeldModel, part: Bin) -> float:
    """Returns the most that a pass without gradients adds."""
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    inside = _MOST_HELD_BY_LAYER * max(shape.ffn, shape.hidden) + 2 * shape.hidden
    added = part.tokens * inside * width
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
    """Numbers per token that one layer keeps for its backward pass."""
    attention = 2 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
    active = shape.experts_per_token + shape.shared_experts
    inside = shape.expert_ffn * active if shape.experts else shape.ffn
    return 6 * shape.hidden + attention + (4 if shape.gated_mlp else 2) * inside
