"""Keys and values of sequences that were read, by the tokens that they begin with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flexrlhf.learning.models.families import CacheShape

BLOCK_TOKENS = 16
"""Tokens that are found, kept and forgotten together."""
_BEGIN = -1
"""Stands for the block before the first."""


class KeptPrefixes:
    """Blocks of tokens with what attention needs of them, each known by all tokens before it.

    Sequences that begin alike share blocks. What was used longest ago goes first, and a block goes
    before the one that it follows. Which blocks are held depends on the calls alone.

    Args:
        shape: of a token.
        most_tokens: that are held, at most; rounded down to whole blocks.
        dtype: of keys and values.
        device: of keys and values.
    """

    def __init__(
        self, shape: CacheShape, *, most_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.most_blocks = most_tokens // BLOCK_TOKENS
        of_block = (2, shape.num_layers, shape.num_kv_heads, BLOCK_TOKENS, shape.head_width)
        self._pool = torch.empty((self.most_blocks, *of_block), dtype=dtype, device=device)
        self._place_of: OrderedDict[tuple[int, tuple[int, ...]], int] = OrderedDict()
        """Of a block, by the place of the one before it and its tokens; first what goes first.

        A place names its block as long as others follow it, since those go before it does."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are held."""
        return len(self._place_of) * BLOCK_TOKENS

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Returns the places of the blocks with which `tokens` begin, as many as are held.

        They count as used. The last token is left out: it has to be read to know what follows it.
        """
        path = self._path(_blocks(tokens[:-1]))
        self._use(path)
        return [self._place_of[key] for key in path]

    def read(self, places: Sequence[int]) -> Tensor:
        """Returns a copy of what is held in blocks, [2, layers, KV heads, T, K]."""
        at = torch.tensor(places, device=self._pool.device)
        return self._pool[at].permute(1, 2, 3, 0, 4, 5).flatten(3, 4)

    def keep(self, tokens: Sequence[int], held: Callable[[int, int], Tensor]) -> None:
        """Holds a sequence, as much of it as fills blocks and finds room.

        Args:
            tokens: of the sequence.
            held: returns keys and values of the tokens from one position up to another,
                [2, layers, KV heads, T, K]; called for those that are not held yet.
        """
        blocks = _blocks(tokens)[: self.most_blocks]
        path = self._path(blocks)
        self._use(path)
        num_found = len(path)
        before = self._place_of[path[-1]] if path else _BEGIN
        places: list[int] = []
        for block in blocks[num_found:]:
            path.append((before, block))
            before = self._place_of[path[-1]] = self._free_place()
            places.append(before)
        if places:
            new = held(num_found * BLOCK_TOKENS, len(blocks) * BLOCK_TOKENS)
            by_block = new.unflatten(3, (len(places), BLOCK_TOKENS)).permute(3, 0, 1, 2, 4, 5)
            self._pool[torch.tensor(places, device=self._pool.device)] = by_block
            self._use(path)

    def close(self) -> None:
        """Forgets everything for good, and gives the memory back."""
        self.most_blocks = 0
        self._place_of.clear()
        self._pool = self._pool.new_empty(0)

    def _path(self, blocks: Sequence[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
        path: list[tuple[int, tuple[int, ...]]] = []
        before = _BEGIN
        for block in blocks:
            place = self._place_of.get((before, block))
            if place is None:
                break
            path.append((before, block))
            before = place
        return path

    def _use(self, path: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Makes blocks the last to go, the first of them last of all."""
        for key in reversed(path):
            self._place_of.move_to_end(key)

    def _free_place(self) -> int:
        if len(self._place_of) < self.most_blocks:
            return len(self._place_of)
        return self._place_of.popitem(last=False)[1]


def _blocks(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the whole blocks of a sequence."""
    ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
    return [tuple(tokens[end - BLOCK_TOKENS : end]) for end in ends]
