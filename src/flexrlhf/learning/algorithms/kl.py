"""How far the policy has moved from a reference: estimators, a loss, and coefficients.

Everything is in nats and estimates KL(policy || reference) from tokens that the policy sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError, RunFailed, ShapeError, nearest
from flexrlhf.learning.algorithms.aggregation import Aggregation, aggregate
from flexrlhf.learning.algorithms.shapes import check_per_token

KLEstimator = Literal["k1", "k2", "k3"]
KL_ESTIMATORS: Final[tuple[KLEstimator, ...]] = get_args(KLEstimator)


def kl_estimate(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    estimator: KLEstimator,
    *,
    max_log_ratio: float = 20.0,
) -> Tensor:
    """Estimates KL(policy || reference) at each sampled token.

    With d = log policy - log reference:

        k1 = d                  unbiased, may be negative
        k2 = d^2 / 2            biased, never negative
        k3 = exp(-d) - 1 + d    unbiased, never negative

    In k3 alone, d is clamped to [-max_log_ratio, max_log_ratio], so that exp(-d) stays finite in
    float32; beyond the bound its gradient is zero. The result itself is not clamped.

    Args:
        logprobs: log-probability of each sampled token under the policy; any shape.
        reference_logprobs: the same tokens under the reference; same shape.
        estimator: one of `KL_ESTIMATORS`.
        max_log_ratio: bound of k3's log-ratio, nats.

    Raises:
        ShapeError: shapes differ.
        ConfigError: `estimator` is unknown.

    Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
    """
    if logprobs.shape != reference_logprobs.shape:
        raise ShapeError(
            f"logprobs is {list(logprobs.shape)}, "
            f"reference_logprobs is {list(reference_logprobs.shape)}.",
            "Both are of one shape: the same tokens under two models.",
            "Score the same batch with both models.",
        )
    log_ratio = logprobs - reference_logprobs
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        log_ratio = log_ratio.clamp(-max_log_ratio, max_log_ratio)
        return torch.expm1(-log_ratio) + log_ratio
    raise ConfigError(
        f"KL estimator {estimator!r} is unknown.",
        f"Known: {', '.join(KL_ESTIMATORS)}.",
        nearest(estimator, KL_ESTIMATORS) or "Choose one of these.",
    )


def kl_loss(
    logprobs_BT: Tensor,
    reference_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    estimator: KLEstimator,
    aggregation: Aggregation = "token_mean",
    num_tokens: int,
    num_sequences: int,
    max_tokens: int,
    max_log_ratio: float = 20.0,
) -> Tensor:
    """Aggregates a KL estimate into a term to add, times its coefficient, to the policy loss.

    On tokens of the live policy, the gradient of k2 is in expectation that of KL(policy ||
    reference); the gradient of k3 is that of KL(reference || policy). k1 is refused: its gradient
    is that of log policy alone, whose expectation is zero, so it adds noise and no pull.

    Args:
        logprobs_BT: log-probabilities under the live policy, with gradient.
        reference_logprobs_BT: log-probabilities under the reference; a constant.
        mask_BT: bool, True at trainable tokens.
        estimator: `k2` or `k3`.
        aggregation: how tokens become one number, see `aggregate`.
        num_tokens: trainable tokens in the global batch.
        num_sequences: sequences in the global batch.
        max_tokens: constant length of `token_sum_norm`.
        max_log_ratio: see `kl_estimate`.

    Returns:
        A scalar.

    Raises:
        ConfigError: `estimator` is k1 or unknown, or `aggregation` is unknown.
        ShapeError: shapes differ, or a count that is divided by is not positive.

    Source: Shao et al. 2024, eq. 4 (arXiv:2402.03300); gradients: "A Comedy of Estimators"
    (arXiv:2512.21852).
    """
    check_per_token(mask_BT, logprobs=logprobs_BT, reference_logprobs=reference_logprobs_BT)
    if estimator == "k1":
        raise ConfigError(
            "The KL estimator of the loss is 'k1'.",
            "k1 as a loss has an expected gradient of zero, so it would not hold the policy.",
            "Use k2 or k3 in the loss, or put k1 into the reward.",
        )
    estimates_BT = kl_estimate(
        logprobs_BT.masked_fill(~mask_BT, 0.0),
        reference_logprobs_BT.detach().masked_fill(~mask_BT, 0.0),
        estimator,
        max_log_ratio=max_log_ratio,
    )
    return aggregate(
        estimates_BT,
        mask_BT,
        aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        max_tokens=max_tokens,
    )


class KLController(Protocol):
    """Says how much KL costs, and may learn from the KL that was measured."""

    coefficient: float
    """Weight of the KL penalty, in reward per nat; at least 0."""

    def update(self, measured_kl: float, num_samples: int) -> None:
        """Takes in one iteration: its KL in nats per sequence, and its number of sequences."""
        ...

    def state(self) -> dict[str, float]:
        """Returns what a checkpoint must hold."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Continues from what `state` returned."""
        ...


@dataclass(slots=True)
class FixedKL:
    """A KL coefficient that never changes.

    Args:
        coefficient: reward per nat, at least 0.

    Raises:
        ConfigError: the coefficient is negative or not finite.
    """

    coefficient: float

    def __post_init__(self) -> None:
        _check_coefficient(self.coefficient)

    def update(self, measured_kl: float, num_samples: int) -> None:
        """Does nothing."""

    def state(self) -> dict[str, float]:
        """Returns what a checkpoint must hold."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continues from what `state` returned."""
        self.coefficient = state["coefficient"]


@dataclass(slots=True)
class AdaptiveKL:
    """A proportional controller in log space that steers the measured KL to a target.

        e = clip((KL - target) / target, -max_error, max_error)
        coefficient <- coefficient * (1 + e * num_samples / horizon)

    The paper writes the constant K = 0.1 where its code, followed here, has num_samples / horizon.

    Args:
        coefficient: where it starts, reward per nat; at least 0.
        target: wanted KL, nats per sequence; above 0.
        horizon: samples after which an error has its full effect; above 0.
        max_error: bound of the relative error.

    Raises:
        ConfigError: a number is out of its range.

    Source: Ziegler et al. 2019, section 2.2 (arXiv:1909.08593).
    """

    coefficient: float
    target: float
    horizon: float
    max_error: float = 0.2

    def __post_init__(self) -> None:
        _check_coefficient(self.coefficient)
        for name in ("target", "horizon", "max_error"):
            number: float = getattr(self, name)
            if not (math.isfinite(number) and number > 0):
                raise ConfigError(
                    f"The adaptive KL coefficient has {name} = {number}.",
                    f"{name} is a finite number above 0.",
                    "Correct it, or use a fixed coefficient.",
                )

    def update(self, measured_kl: float, num_samples: int) -> None:
        """Moves the coefficient up when the KL is above target, and down when below.

        Args:
            measured_kl: mean KL of the iteration, nats per sequence (a sum over its tokens).
            num_samples: sequences of the iteration.

        Raises:
            RunFailed: `measured_kl` is not finite.
            ConfigError: the iteration is so large against the horizon that the coefficient could
                become zero or negative.
        """
        if not math.isfinite(measured_kl):
            raise RunFailed(
                f"The measured KL is {measured_kl}.",
                "It is a finite number of nats.",
                "Look for log-probabilities that are not finite; a lower learning rate may help.",
            )
        gain = num_samples / self.horizon
        if gain * self.max_error >= 1:
            raise ConfigError(
                f"An iteration of {num_samples} samples against a KL horizon of {self.horizon} "
                "could turn the KL coefficient negative.",
                f"The horizon must exceed {num_samples * self.max_error:g} samples.",
                "Raise the horizon; 10000 is customary.",
            )
        error = measured_kl / self.target - 1
        bounded_error = max(-self.max_error, min(self.max_error, error))
        self.coefficient *= 1 + bounded_error * gain

    def state(self) -> dict[str, float]:
        """Returns what a checkpoint must hold."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continues from what `state` returned."""
        self.coefficient = state["coefficient"]


def _check_coefficient(coefficient: float) -> None:
    if not (math.isfinite(coefficient) and coefficient >= 0):
        raise ConfigError(
            f"The KL coefficient is {coefficient}.",
            "It is a finite number, at least 0.",
            "Set 0 for no KL penalty.",
        )
