"""Keys and values of the sequences being generated: one slot per sequence, filled from the left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexrlhf.learning.models.families import CacheShape


class KVCache:
    """Slots [B, KV heads, T, K] per layer, whose first `lengths[b]` tokens are in use.

    There is room for the sequences that run and for `growth` tokens more of the longest; then what
    they hold is copied into a larger place, so that short answers do not pay for the longest
    allowed. Nothing of a cache outlasts a change of weights.

    Args:
        shape: of a token.
        growth: tokens for which there is more room than is used.
        dtype: of keys and values.
        device: of keys and values.
        transposes_keys: a head's keys lie in memory as [K, T], which changes how fast they are
            multiplied and nothing else.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        growth: int,
        dtype: torch.dtype,
        device: torch.device,
        transposes_keys: bool = False,
    ) -> None:
        self._growth = growth
        self._transposes_keys = transposes_keys
        self.lengths = torch.zeros(0, dtype=torch.int64)
        """Tokens in use per slot, int64 [B] on the CPU."""
        self.longest = self.shortest = 0
        """Tokens of the longest and of the shortest sequence."""
        empty = torch.zeros(
            (shape.num_layers, 0, shape.num_kv_heads, 0, shape.head_width),
            dtype=dtype,
            device=device,
        )
        self._keys = self._values = empty
        """[layers, slots, KV heads, T, K]."""
        self.num_moves = 0
        """How often everything was copied into a larger place: views from before are of no use."""
        self._used: list[tuple[Tensor, Tensor]] = []
        """Per layer, keys and values of the slots in use, with all their room."""
        self._newest: Tensor | None = None
        """Where the token that `extend` added lies in each vector of a slot, [B, KV heads, 1, K];
        None where it is the same place in all."""
        self._newest_slots: list[tuple[Tensor, Tensor]] = []
        """That place in keys and values of each layer, [B, KV heads, K], where it is the same."""

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._keys.dtype

    @property
    def num_slots(self) -> int:
        """For which there is room, in use or not; those in use come first."""
        return self._keys.shape[1]

    @property
    def num_places(self) -> int:
        """Tokens of a slot for which there is room."""
        return self._keys.shape[3]

    def add(self, prompt_lengths: Sequence[int]) -> Tensor:
        """Adds slots behind the present ones; returns their rows, on the cache's device."""
        num_old = len(self.lengths)
        self._set_lengths(torch.cat([self.lengths, torch.tensor(prompt_lengths)]))
        if len(self.lengths) > self._keys.shape[1] or self.longest > self._keys.shape[3]:
            self._move(num_old)
        self._find_used()
        return torch.arange(num_old, len(self.lengths), device=self._keys.device)

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores the prompts of `rows`; keys and values are [rows, KV heads, T, K]."""
        num_tokens = keys.shape[2]
        self._keys[layer, rows, :, :num_tokens] = keys.to(self.dtype)
        self._values[layer, rows, :, :num_tokens] = values.to(self.dtype)

    def held(self, row: int, first: int, last: int) -> Tensor:
        """Returns a copy of a row's tokens `first` to `last`, [2, layers, KV heads, T, K]."""
        both = (self._keys, self._values)
        return torch.stack([slots[:, row, :, first:last] for slots in both])

    def repeat_prompt(self, rows: Tensor, prompt: Tensor) -> None:
        """Stores in other rows what `held` returned of first tokens."""
        for slots, held in zip((self._keys, self._values), prompt, strict=True):
            slots[:, rows, :, : held.shape[2]] = held[:, None]

    def extend(self) -> Tensor:
        """Adds one token to every slot, and tells `write` where.

        Returns:
            Its position, int64 on the cache's device: [B], or [1] where it is the same in all.
        """
        self.lengthen()
        return self.place_newest()

    def lengthen(self) -> None:
        """Adds one token to every slot."""
        self.lengths += 1
        self.longest += 1
        self.shortest += 1
        if self.longest > self._keys.shape[3]:
            self._move(len(self.lengths))
            self._find_used()

    def place_newest(self) -> Tensor:
        """Tells `write` where the token lies that `lengthen` added; returns what `extend` does."""
        device = self._keys.device
        if self.longest == self.shortest:
            self._newest = None
            num_slots, last = len(self.lengths), self.longest - 1
            both = (slots[:, :num_slots, :, last].unbind() for slots in (self._keys, self._values))
            self._newest_slots = list(zip(*both, strict=True))
            return torch.tensor([self.longest - 1], device=device)
        positions_B = (self.lengths - 1).to(device)
        _, _, num_heads, _, width = self._keys.shape
        self._newest = positions_B[:, None, None, None].expand(-1, num_heads, 1, width)
        return positions_B

    def extend_by(self, counts_B: Tensor) -> tuple[Tensor, Tensor]:
        """Adds some tokens to each slot.

        Args:
            counts_B: int64, on the CPU.

        Returns:
            Slot and position of each, slot by slot, int64 [N] on the cache's device.
        """
        starts_B = self.lengths
        self._set_lengths(starts_B + counts_B)
        if self.longest > self._keys.shape[3]:
            self._move(len(self.lengths))
            self._find_used()
        rows_N = torch.arange(len(counts_B)).repeat_interleave(counts_B)
        firsts_B = counts_B.cumsum(0) - counts_B
        positions_N = torch.arange(len(rows_N)) + (starts_B - firsts_B)[rows_N]
        return rows_N.to(self._keys.device), positions_N.to(self._keys.device)

    def shorten(self, counts_B: Tensor) -> None:
        """Forgets the last so many tokens of each slot; int64, on the CPU."""
        self._set_lengths(self.lengths - counts_B)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Stores the token that `extend` added; keys and values are [B, KV heads, K]."""
        if self._newest is None:
            key_slots, value_slots = self._newest_slots[layer]
            key_slots.copy_(keys)
            value_slots.copy_(values)
            return
        for slots, heads in zip(self._used[layer], (keys, values), strict=True):
            slots.scatter_(2, self._newest, heads.unsqueeze(2).to(slots.dtype))

    def write_at(
        self, layer: int, places: tuple[Tensor, Tensor], keys: Tensor, values: Tensor
    ) -> None:
        """Stores tokens at the places that `extend_by` gave; keys and values: [N, KV heads, K]."""
        rows_N, positions_N = places
        for slots, heads in zip(self._used[layer], (keys, values), strict=True):
            slots[rows_N, :, positions_N] = heads.to(slots.dtype)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns views of keys and values, [B, KV heads, T, K], T of the longest sequence."""
        keys, values = self._used[layer]
        return keys.narrow(2, 0, self.longest), values.narrow(2, 0, self.longest)

    def read_heads(self) -> list[tuple[Tensor, Tensor]]:
        """Returns each layer's keys [B * KV heads, K, T] and values [B * KV heads, T, K]: views."""
        keys, values = (
            slots[:, : len(self.lengths), :, : self.longest].flatten(1, 2)
            for slots in (self._keys, self._values)
        )
        return list(zip(keys.transpose(-1, -2).unbind(), values.unbind(), strict=True))

    def within(self, num_slots: int, num_places: int) -> list[tuple[Tensor, Tensor]]:
        """Returns each layer's keys and values in a corner of the cache, in use or not.

        Views [slots, KV heads, T, K], good until the cache has moved.
        """
        corners = (
            slots[:, :num_slots, :, :num_places].unbind() for slots in (self._keys, self._values)
        )
        return list(zip(*corners, strict=True))

    def keep(self, rows: Tensor) -> None:
        """Makes old slot `rows[i]` the new slot i; only slots that change place are copied."""
        self._set_lengths(self.lengths[rows])
        moved = (rows != torch.arange(len(rows))).nonzero().squeeze(-1)
        if len(moved):
            sources, places = (at.to(self._keys.device) for at in (rows[moved], moved))
            num_tokens = int(self.lengths[moved].max())
            for slots in (self._keys, self._values):
                slots[:, places, :, :num_tokens] = slots[:, sources, :, :num_tokens]
        self._find_used()

    def _set_lengths(self, lengths_B: Tensor) -> None:
        self.lengths = lengths_B
        lengths = lengths_B.tolist()
        self.longest, self.shortest = max(lengths, default=0), min(lengths, default=0)

    def _find_used(self) -> None:
        num_slots = len(self.lengths)
        self._used = [
            (keys[:num_slots], values[:num_slots])
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def _move(self, num_held: int) -> None:
        """Makes room for the present lengths and some growth; `num_held` slots hold something."""
        self.num_moves += 1
        self._keys = self._moved(self._keys, num_held, is_transposed=self._transposes_keys)
        self._values = self._moved(self._values, num_held, is_transposed=False)

    def _moved(self, slots: Tensor, num_held: int, *, is_transposed: bool) -> Tensor:
        num_layers, _, num_heads, held_tokens, width = slots.shape
        num_tokens = max(self.longest + self._growth, held_tokens)
        inside = (width, num_tokens) if is_transposed else (num_tokens, width)
        # Zeros, not garbage: attention multiplies what its mask hides by 0, and 0 * nan is nan.
        moved = slots.new_zeros(num_layers, len(self.lengths), num_heads, *inside)
        moved = moved.transpose(-1, -2) if is_transposed else moved
        moved[:, :num_held, :, :held_tokens] = slots[:, :num_held]
        return moved
