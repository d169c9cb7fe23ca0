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

    There is room for the sequences that run and for `growth` tokens more of the longest; then what
    they hold is copied into a larger place, so that short answers do not pay for the longest
    allowed. Nothing of a cache outlasts a change of weights.
    """

    def __init__(
        self, shape: CacheShape, *, growth: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._growth = growth
        self.lengths = torch.zeros(0, dtype=torch.int64)
        """Tokens in use per slot, int64 [B] on the CPU."""
        empty = (shape.num_layers, 2, 0, shape.num_kv_heads, 0, shape.head_width)
        self._slots = torch.zeros(empty, dtype=dtype, device=device)
        self._newest = torch.zeros(0, dtype=torch.int64)
        """Where each slot's newest token lies among the vectors [B * KV heads * T] of a layer."""
        self._longest = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._slots.dtype

    def add(self, prompt_lengths: Sequence[int]) -> Tensor:
        """Adds slots behind the present ones; returns their rows, on the cache's device."""
        num_old = len(self.lengths)
        self._set_lengths(torch.cat([self.lengths, torch.tensor(prompt_lengths)]))
        num_slots, num_tokens = self._slots.shape[2], self._slots.shape[4]
        if len(self.lengths) > num_slots or self._longest > num_tokens:
            self._move(num_old)
        return torch.arange(num_old, len(self.lengths), device=self._slots.device)

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores the prompts of `rows`; keys and values are [rows, KV heads, T, K]."""
        num_tokens = keys.shape[2]
        self._slots[layer, 0, rows, :, :num_tokens] = keys.to(self._slots.dtype)
        self._slots[layer, 1, rows, :, :num_tokens] = values.to(self._slots.dtype)

    def prompt(self, row: int, num_tokens: int) -> Tensor:
        """Returns a copy of the first tokens of a row, [layers, 2, KV heads, T, K]."""
        return self._slots[:, :, row, :, :num_tokens].clone()

    def repeat_prompt(self, rows: Tensor, prompt: Tensor) -> None:
        """Stores what `prompt` returned in other rows."""
        self._slots[:, :, rows, :, : prompt.shape[3]] = prompt[:, :, None]

    def extend(self) -> Tensor:
        """Adds one token to every slot; returns its position, int64 [B] on the cache's device."""
        positions_B = self.lengths.to(self._slots.device)
        self._set_lengths(self.lengths + 1)
        if self._longest > self._slots.shape[4]:
            self._move(len(self.lengths))
        num_heads, num_tokens = self._slots.shape[3:5]
        vectors = torch.arange(len(positions_B) * num_heads, device=positions_B.device)
        self._newest = vectors * num_tokens + positions_B.repeat_interleave(num_heads)
        return positions_B

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Stores the token that `extend` added; keys and values are [B, KV heads, K]."""
        vectors = self._slots[layer].flatten(1, 3)
        for place, heads in zip(vectors, (keys, values), strict=True):
            place.index_copy_(0, self._newest, heads.flatten(0, 1).to(place.dtype))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns views of keys and values, [B, KV heads, T, K], T of the longest sequence."""
        used = self._slots[layer, :, : len(self.lengths), :, : self._longest]
        return used[0], used[1]

    def keep(self, rows: Tensor) -> None:
        """Makes old slot `rows[i]` the new slot i; only slots that change place are copied."""
        self._set_lengths(self.lengths[rows])
        moved = (rows != torch.arange(len(rows))).nonzero().squeeze(-1)
        if len(moved):
            sources = rows[moved].to(self._slots.device)
            num_tokens = int(self.lengths[moved].max())
            self._slots[:, :, moved.to(self._slots.device), :, :num_tokens] = self._slots[
                :, :, sources, :, :num_tokens
            ]

    def _set_lengths(self, lengths_B: Tensor) -> None:
        self.lengths = lengths_B
        self._longest = max(lengths_B.tolist(), default=0)

    def _move(self, num_held: int) -> None:
        """Makes room for the present lengths and some growth; `num_held` slots hold something."""
        held = self._slots[:, :, :num_held]
        num_layers, two, _, num_heads, held_tokens, width = held.shape
        num_tokens = max(self._longest + self._growth, held_tokens)
        # Zeros, not garbage: attention multiplies what its mask hides by 0, and 0 * nan is nan.
        self._slots = held.new_zeros(
            num_layers, two, len(self.lengths), num_heads, num_tokens, width
        )
        self._slots[:, :, :num_held, :, :held_tokens] = held
