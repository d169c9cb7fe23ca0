"""Attention of the rests of prompts, to themselves and to what was read before of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flexrlhf.learning.models.families import AttentionCall
from flexrlhf.learning.rollout.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class Rest:
    """A prompt of which only the first tokens are in the slots of its answers."""

    tokens: tuple[int, ...]
    """All of them."""
    start: int
    """Tokens that are there; fewer than all."""
    rows: Tensor
    """Of its answers, int64, on the cache's device; at least one."""


class RestAttention:
    """See `Attend`, for the tokens [1, N] of all rests one after the other: without padding.

    Args:
        cache: with slots for all answers.
        rests: of distinct prompts.
    """

    def __init__(self, cache: KVCache, rests: Sequence[Rest]) -> None:
        device = rests[0].rows.device
        counts = [len(rest.tokens) - rest.start for rest in rests]
        tokens = [token for rest in rests for token in rest.tokens[rest.start :]]
        positions = [torch.arange(rest.start, len(rest.tokens)) for rest in rests]
        self._cache = cache
        self.tokens_1N = torch.tensor(tokens, device=device)[None]
        self.positions_1N = torch.cat(positions).to(device)[None]
        self.ends_P = torch.tensor(counts, device=device).cumsum(0) - 1
        """Where the last token of each rest is."""
        self._parts: list[_Part] = []
        rows: list[Tensor] = []
        sources: list[Tensor] = []
        first = 0
        for rest, count in zip(rests, counts, strict=True):
            numbers = torch.arange(first, first + count, device=device)
            rows.append(rest.rows.repeat_interleave(count))
            sources.append(numbers.repeat(len(rest.rows)))
            self._parts.append(_part(rest, first, device))
            first += count
        self._sources_M = torch.cat(sources)
        self._places = torch.cat(rows), self.positions_1N[0, self._sources_M]

    def __call__(self, call: AttentionCall) -> Tensor:
        """Returns [1, N, heads * K]."""
        queries_NHK, keys_NHK, values_NHK = (heads[0] for heads in call.heads)
        self._cache.write_at(
            call.layer, self._places, keys_NHK[self._sources_M], values_NHK[self._sources_M]
        )
        keys_BHTK, values_BHTK = self._cache.read(call.layer)
        attended = [
            scaled_dot_product_attention(
                queries_NHK[part.first : part.last].transpose(0, 1)[None],
                keys_BHTK[part.row, None, :, : part.length],
                values_BHTK[part.row, None, :, : part.length],
                attn_mask=part.is_seen_RT,
                is_causal=part.is_seen_RT is None,
                scale=call.scaling,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for part in self._parts
        ]
        return torch.cat(attended).flatten(1)[None]


@dataclass(frozen=True, slots=True)
class _Part:
    """The place of one rest among the tokens."""

    first: int
    last: int
    row: int
    """A slot of its prompt."""
    length: int
    """Of the whole prompt."""
    is_seen_RT: Tensor | None
    """Which tokens of the prompt each of the rest sees; None where the rest is the whole."""


def _part(rest: Rest, first: int, device: torch.device) -> _Part:
    length = len(rest.tokens)
    seen = None
    if rest.start:
        positions_T = torch.arange(length, device=device)
        seen = positions_T <= positions_T[rest.start :, None]
    return _Part(first, first + length - rest.start, int(rest.rows[0]), length, seen)
