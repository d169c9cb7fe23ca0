"""Attention of a step: one new token of each sequence, to its own sequence.

The query heads that share a key head take the place of query positions, so that keys and values are
read without being repeated.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flexrlhf.learning.models.families import AttentionCall
from flexrlhf.learning.rollout.kv_cache import KVCache


def multiplies_token(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether attention to one token is made of products: faster on a CPU than the fused kernel."""
    # The fused kernel adds up in more than half precision, and is the faster one on a GPU.
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


class MultipliedAttention:
    """See `Attend`; made of products, whose views of the cache are made once for all layers.

    Args:
        cache: with the step's tokens as its newest.
        added_B11T: to scores, or None.
    """

    def __init__(self, cache: KVCache, added_B11T: Tensor | None) -> None:
        self._cache = cache
        self._heads = cache.read_heads()
        self._ignored = torch.zeros((1, 1, 1), dtype=cache.dtype)
        self._added_B11T = added_B11T

    def __call__(self, call: AttentionCall) -> Tensor:
        """Returns [B, heads * K]."""
        self._cache.write(call.layer, call.keys, call.values)
        keys, values = self._heads[call.layer]
        num_rows, num_heads, width = call.queries.shape
        queries = call.queries.reshape(len(keys), -1, width)
        scores = torch.baddbmm(self._ignored, queries, keys, beta=0, alpha=call.scaling)
        if self._added_B11T is not None:
            scores.unflatten(0, (num_rows, -1)).add_(self._added_B11T)
        attended = torch.bmm(scores.softmax(dim=-1), values)
        return attended.view(num_rows, num_heads * width)


class Slots(Protocol):
    """Keys and values of a step's sequences."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Stores the newest token of each; keys and values are [B, KV heads, K]."""
        ...

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values, [B, KV heads, T, K]."""
        ...


class FusedAttention:
    """See `Attend`; by one kernel.

    Args:
        cache: with the step's tokens as its newest.
        added_B11T: to scores, or None.
    """

    def __init__(self, cache: Slots, added_B11T: Tensor | None) -> None:
        self._cache = cache
        self._added_B11T = added_B11T

    def __call__(self, call: AttentionCall) -> Tensor:
        """Returns [B, heads * K]."""
        self._cache.write(call.layer, call.keys, call.values)
        keys, values = self._cache.read(call.layer)
        queries = call.queries.unflatten(1, (keys.shape[1], -1))
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=self._added_B11T, scale=call.scaling
        )
        return attended.flatten(1)
