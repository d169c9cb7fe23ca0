"""Losses of a policy on pairs of answers, whose rewards are log-ratios to a frozen reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import PreferenceLossName
from flexrlhf.learning.algorithms.preference import pairwise_reward_loss
from flexrlhf.learning.algorithms.shapes import check_counts, check_per_sequence


@dataclass(frozen=True, slots=True)
class AnswerLogprobs:
    """What policy and reference say of one answer of each pair."""

    policy_B: Tensor
    """log p(answer | prompt) under the policy, its tokens' log-probs added up, nats."""
    reference_B: Tensor
    """The same under the reference; it has no gradient."""
    num_tokens_B: Tensor
    """Tokens of the answer, the end token included; at least 1."""

    @property
    def log_ratio(self) -> Tensor:
        """Log p(answer) - log p_reference(answer)."""
        return self.policy_B - self.reference_B


@dataclass(frozen=True, slots=True)
class DirectPreferenceLoss:
    """The loss with what one watches beside it; all of it adds up over shards."""

    loss: Tensor
    """To minimise; the only field with a gradient."""
    num_correct: Tensor
    """int64: pairs whose chosen answer has strictly the higher implicit reward."""
    chosen_reward_sum: Tensor
    """Implicit rewards of the chosen answers: beta times their log-ratio to the reference."""
    rejected_reward_sum: Tensor


def direct_preference_loss(
    chosen: AnswerLogprobs,
    rejected: AnswerLogprobs,
    *,
    kind: PreferenceLossName = "sigmoid",
    beta: float,
    label_smoothing: float = 0.0,
    num_pairs: int,
) -> DirectPreferenceLoss:
    """Loss of a policy on pairs, each the sum over its pairs divided by `num_pairs`.

    With c and r the log-ratios of the chosen and the rejected answer, |.| an answer's tokens, e the
    label smoothing, and L(c, r) = -log sigmoid(beta (c - r)):

    - sigmoid: (1 - e) L(c, r) + e L(r, c); DPO without smoothing, cDPO with it
    - robust: ((1 - e) L(c, r) - e L(r, c)) / (1 - 2 e)
    - sigmoid_norm: L(c / |c|, r / |r|)
    - hinge: max(0, 1 - beta (c - r))
    - ipo: (c / |c| - r / |r| - 1 / (2 beta))^2

    Args:
        chosen: of the preferred answer of each pair.
        rejected: of the other one.
        kind: which loss, by TRL's names.
        beta: how dear the distance to the reference is; above 0.
        label_smoothing: how likely a pair is the wrong way round, in [0, 0.5); sigmoid and robust.
        num_pairs: pairs in the global batch.

    Raises:
        ShapeError: shapes differ, or `num_pairs` is not positive.
        ConfigError: `beta` or `label_smoothing` is out of range.

    Source: sigmoid: Rafailov et al. 2023, eq. 7 (arXiv:2305.18290); its smoothing: Mitchell 2023
    (ericmitchell.ai/cdpo.pdf); robust: Chowdhury et al. 2024 (arXiv:2403.00409); hinge: Zhao et al.
    2023 (arXiv:2305.10425); ipo: Azar et al. 2023, eq. 17 (arXiv:2310.12036), with means over
    tokens as in TRL, whose authors asked those of the paper; sigmoid_norm: TRL 1.16.
    """
    _check(chosen, rejected, beta, label_smoothing, num_pairs)
    better_B, worse_B = beta * chosen.log_ratio, beta * rejected.log_ratio
    forward = pairwise_reward_loss(better_B, worse_B, num_pairs=num_pairs)
    match kind:
        case "sigmoid":
            loss = (1 - label_smoothing) * forward.loss
            loss = loss + label_smoothing * _swapped(better_B, worse_B, num_pairs)
        case "robust":
            loss = (1 - label_smoothing) * forward.loss
            loss = loss - label_smoothing * _swapped(better_B, worse_B, num_pairs)
            loss = loss / (1 - 2 * label_smoothing)
        case "sigmoid_norm":
            means_B = (beta * _mean_log_ratio(answer) for answer in (chosen, rejected))
            loss = pairwise_reward_loss(*means_B, num_pairs=num_pairs).loss
        case "hinge":
            loss = (1 - (better_B - worse_B)).relu().sum() / num_pairs
        case "ipo":
            difference_B = _mean_log_ratio(chosen) - _mean_log_ratio(rejected)
            loss = (difference_B - 1 / (2 * beta)).square().sum() / num_pairs
    return DirectPreferenceLoss(
        loss=loss,
        num_correct=forward.num_correct,
        chosen_reward_sum=better_B.detach().sum(),
        rejected_reward_sum=worse_B.detach().sum(),
    )


def _swapped(better_B: Tensor, worse_B: Tensor, num_pairs: int) -> Tensor:
    """Returns the loss of the pairs taken the other way round."""
    return pairwise_reward_loss(worse_B, better_B, num_pairs=num_pairs).loss


def _mean_log_ratio(answer: AnswerLogprobs) -> Tensor:
    """Returns the log-ratio per token of the answer."""
    return answer.log_ratio / answer.num_tokens_B


def _check(
    chosen: AnswerLogprobs,
    rejected: AnswerLogprobs,
    beta: float,
    label_smoothing: float,
    num_pairs: int,
) -> None:
    check_per_sequence(
        chosen=chosen.policy_B,
        rejected=rejected.policy_B,
        chosen_reference=chosen.reference_B,
        rejected_reference=rejected.reference_B,
        num_chosen_tokens=chosen.num_tokens_B,
        num_rejected_tokens=rejected.num_tokens_B,
    )
    check_counts(num_pairs=num_pairs)
    if not beta > 0:
        raise ConfigError(
            f"beta = {beta}.",
            "It is above 0: without a price for distance the reference would hold nothing.",
            "Set algorithm.beta, for example to 0.1.",
        )
    if not 0 <= label_smoothing < 1 / 2:
        raise ConfigError(
            f"label_smoothing = {label_smoothing}.",
            "It is the chance that a pair is the wrong way round, in [0, 0.5).",
            "Set algorithm.label_smoothing lower.",
        )
