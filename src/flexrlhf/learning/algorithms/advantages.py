"""From scores of whole answers to an advantage per token or per answer.

Whatever is returned here is a constant of the losses and carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.kl import KLEstimator, kl_estimate
from flexrlhf.learning.algorithms.shapes import check_per_sequence, check_per_token


@torch.no_grad()
def token_rewards(
    scores_B: Tensor,
    logprobs_BT: Tensor,
    reference_logprobs_BT: Tensor | None,
    mask_BT: Tensor,
    *,
    kl_coef: float,
    estimator: KLEstimator = "k1",
) -> Tensor:
    """Returns a reward per token: a KL penalty on each trainable one, the score on the last.

    reward_t = -kl_coef * kl_t + [t is the last trainable token] * score

    Args:
        scores_B: score of each whole answer.
        logprobs_BT: log-probabilities under the policy that sampled the tokens.
        reference_logprobs_BT: log-probabilities under the reference; None only with `kl_coef` 0.
        mask_BT: bool, True at trainable tokens, at least one in each row.
        kl_coef: reward per nat, at least 0.
        estimator: how KL is estimated, see `kl_estimate`.

    Returns:
        rewards_BT, zero outside the mask.

    Raises:
        ShapeError: shapes differ, or a row has no trainable token to bear its score.
        ConfigError: `kl_coef` is not zero and there is no reference, or `estimator` is unknown.

    Source: Ouyang et al. 2022, eq. 2 without the pre-training term (arXiv:2203.02155).
    """
    check_per_token(mask_BT, logprobs=logprobs_BT)
    check_per_sequence(scores=scores_B, rows_of_mask=mask_BT.any(dim=1))
    if reference_logprobs_BT is None:
        if kl_coef != 0:
            raise ConfigError(
                f"The KL coefficient is {kl_coef}, but there are no reference log-probabilities.",
                "A KL penalty in the reward needs the reference model.",
                "Score the samples with the reference, or set the coefficient to 0.",
            )
        reference_logprobs_BT = logprobs_BT
    check_per_token(mask_BT, reference_logprobs=reference_logprobs_BT)
    kl_BT = kl_estimate(logprobs_BT, reference_logprobs_BT, estimator)
    trainable_from_here_BT = mask_BT.flip(1).cumsum(dim=1).flip(1)
    is_last_BT = mask_BT & (trainable_from_here_BT == 1)
    num_empty = len(mask_BT) - int(is_last_BT.sum())
    if num_empty > 0:
        raise ShapeError(
            f"{num_empty} of {len(mask_BT)} rows have no trainable token.",
            "Each answer has at least one generated token, which bears its score.",
            "Leave empty answers out of the batch.",
        )
    scores_BT = scores_B.to(logprobs_BT.dtype)[:, None].where(is_last_BT, 0.0)
    return scores_BT - (kl_coef * kl_BT).masked_fill(~mask_BT, 0.0)


@torch.no_grad()
def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the trainable tokens of each row.

        delta_t = r_t + gamma * V_t' - V_t
        A_t     = delta_t + gamma * lambda * A_t'
        R_t     = A_t + V_t

    t' is the next *trainable* token: masked tokens between two turns are skipped and neither decay
    nor cut the reward. After the last trainable token the value is 0. A reward on a masked token is
    not seen.

    Args:
        rewards_BT: reward of each token.
        values_BT: value of the state before each token.
        mask_BT: bool, True at trainable tokens.
        gamma: discount per token, in [0, 1].
        gae_lambda: weight of longer looks ahead, in [0, 1].

    Returns:
        advantages_BT, not whitened, and returns_BT, the targets of the value function. Both are
        zero outside the mask.

    Raises:
        ShapeError: shapes differ.

    Source: Schulman et al. 2016, eq. 16 (arXiv:1506.02438).
    """
    check_per_token(mask_BT, rewards=rewards_BT, values=values_BT)
    next_value_B = values_BT.new_zeros(len(values_BT))
    next_advantage_B = torch.zeros_like(next_value_B)
    advantages_BT = torch.zeros_like(values_BT)
    for t in reversed(range(mask_BT.shape[1])):
        is_trainable_B, value_B = mask_BT[:, t], values_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - value_B
        advantage_B = delta_B + gamma * gae_lambda * next_advantage_B
        next_value_B = value_B.where(is_trainable_B, next_value_B)
        next_advantage_B = advantage_B.where(is_trainable_B, next_advantage_B)
        advantages_BT[:, t] = advantage_B.where(is_trainable_B, 0.0)
    returns_BT = (advantages_BT + values_BT).masked_fill(~mask_BT, 0.0)
    return advantages_BT, returns_BT


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and spread of a set of numbers, in float64; sets merge without their numbers."""

    count: int
    mean: float
    """0 for the empty set."""
    squared_deviations: float
    """Sum of squared distances from the mean."""

    @property
    def variance(self) -> float:
        """Sample variance, with Bessel's correction.

        Raises:
            ShapeError: there are fewer than two numbers.
        """
        if self.count < 2:
            raise ShapeError(
                f"The variance of {self.count} number(s) is asked for.",
                "A sample variance needs two numbers or more.",
                "Whiten over a larger batch.",
            )
        return self.squared_deviations / (self.count - 1)

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of both sets together.

        Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
        computing sample variances".
        """
        count = self.count + other.count
        if count == 0:
            return self
        distance = other.mean - self.mean
        return Moments(
            count,
            self.mean + distance * other.count / count,
            self.squared_deviations
            + other.squared_deviations
            + distance**2 * self.count * other.count / count,
        )


@torch.no_grad()
def masked_moments(x_BT: Tensor, mask_BT: Tensor) -> Moments:
    """Returns the moments of the entries where the mask is True; merge them over shards.

    Raises:
        ShapeError: shapes differ.
    """
    check_per_token(mask_BT, x=x_BT)
    x_N = x_BT[mask_BT].double()
    if len(x_N) == 0:
        return Moments(0, 0.0, 0.0)
    mean = x_N.mean()
    return Moments(len(x_N), float(mean), float((x_N - mean).square().sum()))


@torch.no_grad()
def whiten(
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    mean: float,
    variance: float,
    epsilon: float = 1e-8,
) -> Tensor:
    """Shifts and scales advantages to mean 0 and variance 1.

    x <- (x - mean) / sqrt(variance + epsilon)

    Args:
        advantages_BT: advantages as `gae` returns them.
        mask_BT: bool, True at trainable tokens.
        mean: mean over the trainable tokens of the *global* batch, see `masked_moments`.
        variance: their sample variance.
        epsilon: keeps the root away from zero.

    Returns:
        Whitened advantages, zero outside the mask.

    Raises:
        ShapeError: shapes differ.

    Source: Huang et al. 2024, detail "whitening" (arXiv:2403.17031).
    """
    check_per_token(mask_BT, advantages=advantages_BT)
    whitened_BT = (advantages_BT - mean) / (variance + epsilon) ** 0.5
    return whitened_BT.masked_fill(~mask_BT, 0.0)


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of answers against the other answers to the same prompt."""

    advantages_B: Tensor
    num_groups: int
    num_zero_variance_groups: int
    """Groups whose answers all have one reward, and which therefore teach nothing."""


@torch.no_grad()
def group_advantages(
    rewards_B: Tensor,
    group_ids_B: Tensor,
    *,
    epsilon: float = 1e-4,
    scale_by_std: bool = True,
) -> GroupAdvantages:
    """Compares each reward with the mean of its group.

    A = (r - mean(group)) / (std(group) + epsilon)

    std is the sample standard deviation (ddof 1). Where all rewards of a group are equal, as in a
    group of one, advantages are exactly 0 and the group is counted.

    Args:
        rewards_B: reward of each answer, finite.
        group_ids_B: integers; answers to one prompt share one, in any order of rows.
        epsilon: added to the standard deviation, in units of reward.
        scale_by_std: False leaves out the division (Dr.GRPO).

    Raises:
        ShapeError: shapes differ.

    Source: Shao et al. 2024, section 4.1.2 (arXiv:2402.03300); without std: Dr.GRPO
    (arXiv:2503.20783).
    """
    check_per_sequence(rewards=rewards_B, group_ids=group_ids_B)
    group_B, size_P = _numbered_groups(group_ids_B)
    wide_B = rewards_B.double()
    zeros_P = wide_B.new_zeros(len(size_P))
    centred_B = wide_B - (zeros_P.index_add(0, group_B, wide_B) / size_P)[group_B]
    # Equality is asked of the rewards, since the mean of equal numbers may be off by a rounding.
    highest_P = zeros_P.scatter_reduce(0, group_B, wide_B, "amax", include_self=False)
    lowest_P = zeros_P.scatter_reduce(0, group_B, wide_B, "amin", include_self=False)
    is_constant_P = highest_P == lowest_P
    advantages_B = centred_B.masked_fill(is_constant_P[group_B], 0.0)
    if scale_by_std:
        squares_P = zeros_P.index_add(0, group_B, centred_B.square())
        std_P = (squares_P / (size_P - 1).clamp(min=1)).sqrt()
        advantages_B = advantages_B / (std_P + epsilon)[group_B]
    dtype = rewards_B.dtype if rewards_B.is_floating_point() else torch.float32
    return GroupAdvantages(advantages_B.to(dtype), len(size_P), int(is_constant_P.sum()))


def _numbered_groups(group_ids_B: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's group, numbered from 0, and the size of each group."""
    distinct = torch.unique(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        group_ids_B, return_inverse=True, return_counts=True
    )
    _, group_B, size_P = cast("tuple[Tensor, Tensor, Tensor]", distinct)
    return group_B, size_P
