"""Losses of the policy: PPO's clipped surrogate, and the entropy term."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.algorithms.aggregation import Aggregation, aggregate
from flexrlhf.learning.algorithms.shapes import check_per_token


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss with what one watches beside it; all are scalars that add up over shards."""

    loss: Tensor
    """To minimise; the only field with a gradient."""
    clipped_tokens: Tensor
    """int64: trainable tokens where a clipped branch was chosen, which have no gradient."""
    approx_kl_sum: Tensor
    """Sum over trainable tokens of the k3 estimate of KL(old || live): r - 1 - log r, in nats."""
    ratio_sum: Tensor
    """Sum over trainable tokens of r."""


def clipped_policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    weights_BT: Tensor | None = None,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token_mean",
    num_tokens: int,
    num_sequences: int,
    max_tokens: int,
    max_log_ratio: float = 20.0,
) -> PolicyLoss:
    """PPO's clipped surrogate, made one number by `aggregate`.

        r = exp(clamp(log live - log old, -max_log_ratio, max_log_ratio))
        s = min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)
        s = max(s, dual_clip * A)   where A < 0, if dual_clip is given
        loss = -aggregate(w * s)

    The clamp keeps exp finite in float32. A token beyond it has no gradient, but does not count as
    clipped for that.

    Args:
        logprobs_BT: log-probability of each sampled token under the live policy, nats.
        old_logprobs_BT: the same under the policy that the batch started with; a constant.
        advantages_BT: a constant per token.
        mask_BT: bool, True at trainable tokens.
        weights_BT: w, a constant per token, see `importance_weights`; None: 1.
        clip_low: how far below 1 the ratio may go, in [0, 1].
        clip_high: how far above 1 the ratio may go, at least 0.
        dual_clip: bounds the loss of tokens with A < 0 at dual_clip * |A|; above 1, or None.
        aggregation: how tokens become one number, see `aggregate`.
        num_tokens: trainable tokens in the global batch.
        num_sequences: sequences in the global batch.
        max_tokens: constant length of `token_sum_norm`.
        max_log_ratio: bound of the log-ratio, nats.

    Raises:
        ShapeError: shapes differ, or a count that is divided by is not positive.
        ConfigError: `dual_clip` is not above 1, or `aggregation` is unknown.

    Source: Schulman et al. 2017, eq. 7 (arXiv:1707.06347); asymmetric clip: DAPO
    (arXiv:2503.14476); dual clip: Ye et al. 2020 (arXiv:1912.09729).
    """
    check_per_token(
        mask_BT, logprobs=logprobs_BT, old_logprobs=old_logprobs_BT, advantages=advantages_BT
    )
    if weights_BT is not None:
        check_per_token(mask_BT, weights=weights_BT)
    _check_dual_clip(dual_clip)
    log_ratio_BT = (logprobs_BT - old_logprobs_BT.detach()).masked_fill(~mask_BT, 0.0)
    log_ratio_BT = log_ratio_BT.clamp(-max_log_ratio, max_log_ratio)
    advantages_BT = advantages_BT.detach().masked_fill(~mask_BT, 0.0)
    ratio_BT = log_ratio_BT.exp()
    free_BT = ratio_BT * advantages_BT
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    surrogate_BT = torch.minimum(free_BT, clipped_BT)
    is_clipped_BT = clipped_BT < free_BT
    if dual_clip is not None:
        floor_BT = (dual_clip * advantages_BT).where(advantages_BT < 0, -math.inf)
        is_clipped_BT = is_clipped_BT | (floor_BT > surrogate_BT)
        surrogate_BT = torch.maximum(surrogate_BT, floor_BT)
    if weights_BT is not None:
        surrogate_BT = surrogate_BT * weights_BT.detach()
    loss = -aggregate(
        surrogate_BT,
        mask_BT,
        aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        max_tokens=max_tokens,
    )
    fixed_log_ratio_BT = log_ratio_BT.detach()
    return PolicyLoss(
        loss=loss,
        clipped_tokens=is_clipped_BT.sum(),
        approx_kl_sum=(torch.expm1(fixed_log_ratio_BT) - fixed_log_ratio_BT).sum(),
        ratio_sum=ratio_BT.detach().masked_fill(~mask_BT, 0.0).sum(),
    )


def entropy_loss(
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    aggregation: Aggregation = "token_mean",
    num_tokens: int,
    num_sequences: int,
    max_tokens: int,
) -> Tensor:
    """Returns the negative aggregated entropy: added with its coefficient, it is a bonus.

    Args:
        entropy_BT: entropy of the live policy before each token, nats.
        mask_BT: bool, True at trainable tokens.
        aggregation: how tokens become one number, see `aggregate`.
        num_tokens: trainable tokens in the global batch.
        num_sequences: sequences in the global batch.
        max_tokens: constant length of `token_sum_norm`.

    Raises:
        ShapeError: shapes differ, or a count that is divided by is not positive.
        ConfigError: `aggregation` is unknown.

    Source: Schulman et al. 2017, eq. 9, the term c2 * S (arXiv:1707.06347).
    """
    return -aggregate(
        entropy_BT,
        mask_BT,
        aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        max_tokens=max_tokens,
    )


def _check_dual_clip(dual_clip: float | None) -> None:
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(
            f"The dual clip is {dual_clip}.",
            "It bounds ratios from above where the advantage is negative, so it is above 1.",
            "3 is customary; leave it out for none.",
        )
