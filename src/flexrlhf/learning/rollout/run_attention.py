"""Attention of runs: some new tokens of each sequence, as many as each has, to its own sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flexrlhf.learning.models.families import AttentionCall
from flexrlhf.learning.rollout.kv_cache import KVCache


class RunAttention:
    """See `Attend`, for the tokens [N] of all runs one after the other.

    Products are made for these tokens alone; only attention lays the runs beside each other,
    [B, T], and what stands behind a shorter run is computed and not used.

    Args:
        cache: extended by the runs.
        counts_B: tokens of each row's run, int64 on the CPU.
        places: slot and position of each token.
    """

    def __init__(self, cache: KVCache, counts_B: Tensor, places: tuple[Tensor, Tensor]) -> None:
        self._cache = cache
        self._places = places
        self._num_rows = len(counts_B)
        self._longest = int(counts_B.max())
        self._laid_N: Tensor | None = None
        """Where the tokens lie in [B * T]; None where all runs are as long, and so fill it."""
        rows_N, positions_N = places
        if int(counts_B.min()) < self._longest:
            starts_B = (cache.lengths - counts_B).to(rows_N.device)
            self._laid_N = rows_N * self._longest + positions_N - starts_B[rows_N]
        slots_S = torch.arange(cache.longest, device=positions_N.device)
        positions_BT = self._laid_out(positions_N).view(self._num_rows, self._longest)
        is_unseen_BTS = slots_S > positions_BT[:, :, None]
        self._added_BTS = torch.zeros(
            is_unseen_BTS.shape, dtype=cache.dtype, device=positions_N.device
        ).masked_fill_(is_unseen_BTS, -torch.inf)
        self._mask: Tensor | None = None

    def __call__(self, call: AttentionCall) -> Tensor:
        """Returns [N, heads * K].

        The query heads that share a key head are positions of it, so that keys and values are read
        without being repeated.
        """
        self._cache.write_at(call.layer, self._places, call.keys, call.values)
        keys, values = self._cache.read(call.layer)
        queries = self._laid_out(call.queries).unflatten(0, (self._num_rows, self._longest))
        by_key_head = queries.unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4)
        num_sharing = by_key_head.shape[2]
        if self._mask is None:
            self._mask = self._added_BTS[:, None].repeat(1, 1, num_sharing, 1)
        attended = scaled_dot_product_attention(
            by_key_head.flatten(2, 3), keys, values, attn_mask=self._mask, scale=call.scaling
        )
        by_token = attended.unflatten(2, (num_sharing, -1)).permute(0, 3, 1, 2, 4)
        flat = by_token.flatten(2).flatten(0, 1)
        return flat if self._laid_N is None else flat[self._laid_N]

    def _laid_out(self, values_N: Tensor) -> Tensor:
        """Returns the tokens' values in their places, [B * T, ...]; zeros elsewhere."""
        if self._laid_N is None:
            return values_N
        laid = values_N.new_zeros(self._num_rows * self._longest, *values_N.shape[1:])
        return laid.index_copy_(0, self._laid_N, values_N)
