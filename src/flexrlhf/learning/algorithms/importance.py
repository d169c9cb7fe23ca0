"""Importance weights: answers of one policy correct the loss of another.

An engine that computes otherwise than the trainer, with weights in int8 for one, draws from a
policy of its own, the behaviour policy. Each token then counts as often as the trainer's policy
would have drawn it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.algorithms.shapes import check_per_token

ImportanceLevel = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class Importance:
    """How answers are weighted."""

    level: ImportanceLevel
    """`token`: each token by its own ratio, which makes what is drawn in a state right, but leaves
    the states those of the behaviour policy. `sequence`: all tokens of an answer by the product of
    its ratios, which is exact without a cap, and scatters the more the longer answers are."""
    cap: float = math.inf
    """Largest weight; infinity sets no limit."""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Weights, which are constants, with what one watches beside them: scalars that add up."""

    weights_BT: Tensor
    """0 outside the mask."""
    weight_sum: Tensor
    """Sum over trainable tokens."""
    capped_tokens: Tensor
    """int64: trainable tokens whose weight was cut."""
    approx_kl_sum: Tensor
    """Sum over trainable tokens of the k3 estimate of KL(behaviour || trainer), nats."""


@torch.no_grad()
def importance_weights(
    old_logprobs_BT: Tensor,
    behaviour_logprobs_BT: Tensor,
    mask_BT: Tensor,
    importance: Importance,
    *,
    max_log_ratio: float = 20.0,
) -> ImportanceWeights:
    """Weights by which tokens of the behaviour policy stand for those of the trainer's.

        d = clamp(log old - log behaviour, -max_log_ratio, max_log_ratio)
        token:     w = min(exp(d), cap)
        sequence:  w = min(exp(clamp(sum of d over the answer)), cap), for each of its tokens

    Args:
        old_logprobs_BT: of each sampled token, by the trainer with the weights that the batch
            started with, nats.
        behaviour_logprobs_BT: by the distribution that it was drawn from.
        mask_BT: bool, True at trainable tokens; whole answers.
        importance: level and cap.
        max_log_ratio: bound of log-ratios, nats, that keeps exp finite in float32.

    Raises:
        ShapeError: shapes differ.
        ConfigError: the cap is not positive.

    Source: truncated importance sampling, Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training" (the cap is their C); Ionides 2008.
    """
    check_per_token(mask_BT, old_logprobs=old_logprobs_BT, behaviour_logprobs=behaviour_logprobs_BT)
    if not importance.cap > 0:
        raise ConfigError(
            f"Importance weights are capped at {importance.cap}.",
            "No token would count; it must be above 0.",
            "2 is customary; null sets no limit.",
        )
    log_ratio_BT = (old_logprobs_BT - behaviour_logprobs_BT).masked_fill(~mask_BT, 0.0)
    log_ratio_BT = log_ratio_BT.clamp(-max_log_ratio, max_log_ratio)
    log_weight_BT = log_ratio_BT
    if importance.level == "sequence":
        of_answer_B1 = log_ratio_BT.sum(dim=1, keepdim=True)
        log_weight_BT = of_answer_B1.clamp(-max_log_ratio, max_log_ratio).expand_as(log_ratio_BT)
    free_BT = log_weight_BT.exp().masked_fill(~mask_BT, 0.0)
    weights_BT = free_BT.clamp(max=importance.cap)
    return ImportanceWeights(
        weights_BT,
        weight_sum=weights_BT.sum(),
        capped_tokens=(free_BT > importance.cap).sum(),
        approx_kl_sum=(torch.expm1(log_ratio_BT) - log_ratio_BT).sum(),
    )
