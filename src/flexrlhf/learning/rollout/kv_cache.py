"""Keys and values of the sequences being generated: one slot per sequence, filled from the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token of one sequence takes."""

    num_layers: int
    num_kv_heads: int
    head_width: int


class KVCache:
    """Slots [B, KV heads, T, K] per layer, whose first `lengths[b]` tokens are in use.

    The slots start with room for the prompts and grow by `growth` tokens when the longest sequence
    is full, so that short answers do not pay for the longest allowed. A cache lives as long as its
    wave: nothing of it outlasts a change of weights.
    """

    def __init__(
        self,
        shape: CacheShape,
        prompt_lengths: Sequence[int],
        *,
        growth: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._growth = growth
        self.lengths = torch.tensor(prompt_lengths)
        """Tokens in use per slot, int64 [B] on the CPU."""
        slots = (shape.num_layers, 2, len(prompt_lengths), shape.num_kv_heads)
        capacity = max(prompt_lengths) + growth
        # Zeros, not garbage: attention multiplies what its mask hides by 0, and 0 * nan is nan.
        self._slots = torch.zeros(*slots, capacity, shape.head_width, dtype=dtype, device=device)

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores the prompts of `rows`; keys and values are [rows, KV heads, T, K]."""
        num_tokens = keys.shape[2]
        self._slots[layer, 0, rows, :, :num_tokens] = keys.to(self._slots.dtype)
        self._slots[layer, 1, rows, :, :num_tokens] = values.to(self._slots.dtype)

    def extend(self) -> Tensor:
        """Adds one token to every slot; returns its position, int64 [B] on the cache's device."""
        positions_B = self.lengths.to(self._slots.device)
        self.lengths = self.lengths + 1
        if int(self.lengths.max()) > self._slots.shape[-2]:
            self._grow()
        return positions_B

    def write(self, layer: int, positions_B: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores one token per slot at `positions_B`; keys and values are [B, KV heads, K]."""
        rows = torch.arange(len(positions_B), device=positions_B.device)
        self._slots[layer, 0][rows, :, positions_B] = keys.to(self._slots.dtype)
        self._slots[layer, 1][rows, :, positions_B] = values.to(self._slots.dtype)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns views of keys and values, [B, KV heads, T, K], T of the longest sequence."""
        used = self._slots[layer, :, : len(self.lengths), :, : int(self.lengths.max())]
        return used[0], used[1]

    def keep(self, rows: Tensor) -> None:
        """Makes old slot `rows[i]` the new slot i; only slots that change place are copied."""
        self.lengths = self.lengths[rows]
        moved = (rows != torch.arange(len(rows))).nonzero().squeeze(-1)
        if len(moved):
            sources = rows[moved].to(self._slots.device)
            num_tokens = int(self.lengths[moved].max())
            self._slots[:, :, moved.to(self._slots.device), :, :num_tokens] = self._slots[
                :, :, sources, :, :num_tokens
            ]

    def _grow(self) -> None:
        old = self._slots[:, :, : len(self.lengths)]
        num_layers, two, num_slots, num_heads, capacity, width = old.shape
        self._slots = old.new_zeros(
            num_layers, two, num_slots, num_heads, capacity + self._growth, width
        )
        self._slots[..., :capacity, :] = old
