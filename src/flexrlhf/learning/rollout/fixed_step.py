"""A decode step whose shapes do not depend on how long its sequences are.

So it can be captured: what changes from token to token lies in tensors on the device, and nothing
that it does waits for the device or asks it for a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexrlhf.learning.models.families import Family
from flexrlhf.learning.rollout.token_attention import FusedAttention


class FixedSlots:
    """See `Slots`: a corner of a cache, with the place of each newest token on the device.

    Args:
        layers: keys and values of each, [R, KV heads, T, K], written in place.
        positions_R: of the newest tokens, below T.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], positions_R: Tensor) -> None:
        self._layers = layers
        _, num_heads, _, width = layers[0][0].shape
        self._newest = positions_R[:, None, None, None].expand(-1, num_heads, 1, width)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `Slots`."""
        for slots, heads in zip(self._layers[layer], (keys, values), strict=True):
            slots.scatter_(2, self._newest, heads.unsqueeze(2).to(slots.dtype))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """See `Slots`."""
        return self._layers[layer]


def fixed_step(
    family: Family,
    layers: Sequence[tuple[Tensor, Tensor]],
    tokens_R: Tensor,
    positions_R: Tensor,
) -> Tensor:
    """Reads one token of each of R sequences, and returns the logits [R, V] behind it.

    Args:
        family: prepared for these positions.
        layers: of the cache: see `FixedSlots`. What lies behind a sequence's position is not seen,
            but must be finite.
        tokens_R: int64.
        positions_R: int64, below T. Those of rows that hold no sequence must lie in it too.
    """
    keys, _ = layers[0]
    places_T = torch.arange(keys.shape[2], device=positions_R.device)
    is_unseen_RT = places_T > positions_R[:, None]
    added_RT = torch.zeros_like(is_unseen_RT, dtype=keys.dtype)
    added_RT.masked_fill_(is_unseen_RT, -torch.inf)
    attend = FusedAttention(FixedSlots(layers, positions_R), added_RT[:, None, None])
    return family.logits(family.hidden(tokens_R, positions_R, attend))
