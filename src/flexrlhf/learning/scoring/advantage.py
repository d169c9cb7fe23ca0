"""Rewards, advantages and returns of a whole batch: the barrier between scoring and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flexrlhf.learning.algorithms.advantages import (
    gae,
    group_advantages,
    masked_moments,
    token_rewards,
    whiten,
)
from flexrlhf.learning.algorithms.kl import KLEstimator
from flexrlhf.learning.data.experience import Batch, Sample, collate


@dataclass(frozen=True, slots=True)
class AdvantageSettings:
    """How rewards become advantages."""

    estimator: Literal["gae", "group"]
    gamma: float = 1.0
    gae_lambda: float = 0.95
    whiten: bool = True
    """GAE only: zero mean and unit variance over the whole batch."""
    epsilon: float = 1e-8
    """Added to the variance when whitening, to a group's deviation when normalising it."""
    scale_by_std: bool = True
    kl_in_reward: bool = True
    kl_estimator: KLEstimator = "k1"


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What the barrier learnt about the whole batch."""

    kl_per_token: float | None
    """Mean of log p - log p_reference over generated tokens, nats; None without a reference."""
    kl_per_answer: float | None
    """Mean over answers of the same difference summed over the answer."""
    num_groups: int = 0
    num_zero_variance_groups: int = 0


def assign_advantages(
    samples: Sequence[Sample],
    group_ids: Sequence[int],
    settings: AdvantageSettings,
    *,
    kl_coef: float,
) -> BatchStatistics:
    """Writes `advantages` (and `returns`, with GAE) into the samples of a whole batch.

    Args:
        samples: scored samples; all of them, since whitening and groups need the whole batch.
        group_ids: the prompt's draw of each sample; equal ids form a group.
        settings: the estimator and its constants.
        kl_coef: present coefficient of the KL penalty inside the reward.
    """
    has_reference = "reference_logprobs" in samples[0].fields
    # Where no reward depends on the policy's log-probs, the engine alone may have given any.
    own = "old_logprobs" if "old_logprobs" in samples[0].fields else "logprobs"
    names = [own, "reference_logprobs"] if has_reference else [own]
    names += ["values"] if settings.estimator == "gae" else []
    batch = collate(samples, names)
    scores_B = torch.tensor([s.reward for s in samples], dtype=batch.fields[own].dtype)
    rewards_BT = token_rewards(
        scores_B,
        batch.fields[own],
        batch.fields.get("reference_logprobs"),
        batch.mask,
        kl_coef=kl_coef if settings.kl_in_reward and has_reference else 0.0,
        estimator=settings.kl_estimator,
    )
    num_groups = num_zero = 0
    if settings.estimator == "gae":
        fields = _gae_fields(rewards_BT, batch, settings)
    else:
        grouped = group_advantages(
            rewards_BT.sum(dim=1),
            torch.tensor(group_ids),
            epsilon=settings.epsilon,
            scale_by_std=settings.scale_by_std,
        )
        fields = {"advantages": grouped.advantages_B[:, None] * batch.mask}
        num_groups, num_zero = grouped.num_groups, grouped.num_zero_variance_groups
    for row, sample in enumerate(samples):
        for name, values_BT in fields.items():
            sample.fields[name] = values_BT[row, : sample.num_tokens].clone()
    per_token, per_answer = _divergence(batch, own) if has_reference else (None, None)
    return BatchStatistics(per_token, per_answer, num_groups, num_zero)


def _gae_fields(rewards_BT: Tensor, batch: Batch, settings: AdvantageSettings) -> dict[str, Tensor]:
    advantages_BT, returns_BT = gae(
        rewards_BT,
        batch.fields["values"],
        batch.mask,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
    )
    if settings.whiten:
        moments = masked_moments(advantages_BT, batch.mask)
        advantages_BT = whiten(
            advantages_BT,
            batch.mask,
            mean=moments.mean,
            variance=moments.variance,
            epsilon=settings.epsilon,
        )
    return {"advantages": advantages_BT, "returns": returns_BT}


def _divergence(batch: Batch, own: str) -> tuple[float, float]:
    difference_BT = (batch.fields[own] - batch.fields["reference_logprobs"]) * batch.mask
    total = difference_BT.sum().item()
    return total / max(1, int(batch.mask.sum())), total / batch.tokens.shape[0]
