"""The loss of the value function."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flexrlhf.learning.algorithms.aggregation import token_mean
from flexrlhf.learning.algorithms.shapes import check_per_token


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """A value loss with what one watches beside it; both are scalars that add up over shards."""

    loss: Tensor
    """To minimise; the only field with a gradient."""
    clipped_tokens: Tensor
    """int64: trainable tokens where the clipped branch was chosen, which have no gradient."""


def clipped_value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip: float,
    num_tokens: int,
) -> ValueLoss:
    """Half the squared error, never less than that of a value held near its old one.

    loss = sum(0.5 * max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)) / num_tokens

    Args:
        values_BT: values under the live critic, with gradient.
        old_values_BT: values under the critic that the batch started with; a constant.
        returns_BT: targets, from un-whitened advantages; a constant.
        mask_BT: bool, True at trainable tokens.
        clip: bound of a value's move, in units of reward; `math.inf` for none.
        num_tokens: trainable tokens in the global batch.

    Raises:
        ShapeError: shapes differ, or `num_tokens` is not positive.

    Source: Schulman et al.'s PPO code (openai/baselines, ppo2), described as detail 9 of Huang et
    al. 2022, "The 37 implementation details of PPO".
    """
    check_per_token(mask_BT, values=values_BT, old_values=old_values_BT, returns=returns_BT)
    values_BT = values_BT.masked_fill(~mask_BT, 0.0)
    old_values_BT = old_values_BT.detach().masked_fill(~mask_BT, 0.0)
    returns_BT = returns_BT.detach().masked_fill(~mask_BT, 0.0)
    held_BT = values_BT.clamp(old_values_BT - clip, old_values_BT + clip)
    error_BT = (values_BT - returns_BT).square()
    held_error_BT = (held_BT - returns_BT).square()
    loss_BT = 0.5 * torch.maximum(error_BT, held_error_BT)
    return ValueLoss(
        loss=token_mean(loss_BT, mask_BT, num_tokens=num_tokens),
        clipped_tokens=(held_error_BT > error_BT).sum(),
    )
