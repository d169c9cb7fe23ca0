"""The loss of one micro-batch for each thing a role can learn.

An objective runs the forward pass and calls the pure functions of `learning.algorithms`. It gets
the counts of the *whole* mini-batch as numbers, so the losses of its micro-batches add up to the
loss of the mini-batch however it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from flexrlhf.core.names import PreferenceLossName
from flexrlhf.learning.algorithms.aggregation import Aggregation
from flexrlhf.learning.algorithms.direct_preference import AnswerLogprobs, direct_preference_loss
from flexrlhf.learning.algorithms.importance import Importance, importance_weights
from flexrlhf.learning.algorithms.kl import KLEstimator, kl_loss
from flexrlhf.learning.algorithms.policy import clipped_policy_loss, entropy_loss
from flexrlhf.learning.algorithms.preference import pairwise_reward_loss
from flexrlhf.learning.algorithms.supervised import supervised_loss
from flexrlhf.learning.algorithms.value import clipped_value_loss
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.models.forward import (
    sequence_scores,
    shared_outputs,
    token_logprobs,
    token_values,
)


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Sizes of the mini-batch that a micro-batch is part of."""

    num_tokens: int
    """Trainable tokens."""
    num_sequences: int
    max_tokens: int
    """The longest answer allowed, for the Dr. GRPO normalisation."""


@dataclass(frozen=True, slots=True)
class MicroBatchLoss:
    """A loss to differentiate, and sums that add over micro-batches."""

    loss: Tensor
    sums: Mapping[str, Tensor]
    """0-d tensors; `loss/*` are already divided by the global counts."""
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """0-d tensors, of which the largest of all micro-batches counts."""


class Objective(Protocol):
    """What a role learns from one micro-batch."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the per-token fields that the batch must carry."""
        ...

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Returns the micro-batch's part of the mini-batch loss."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Clipped surrogate, entropy bonus, and a KL term where it is part of the loss."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: Aggregation
    entropy_coef: float
    kl_coef: float
    """Weight of the KL loss; zero where KL is part of the reward, or absent."""
    kl_estimator: KLEstimator
    temperature: float
    is_on_policy: bool = False
    """The weights are those that gave the answers, so old log-probs are the live ones; what the
    engine said of them is compared."""
    importance: Importance | None = None
    """Weighs the surrogate of answers that another policy than the trainer's gave; None: 1."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Per-token fields that the batch must carry."""
        names = ["logprobs" if self.is_on_policy else "old_logprobs", "advantages"]
        if self.kl_coef:
            names.append("reference_logprobs")
        if self.importance is not None:
            names.append("sampling_logprobs")
        return tuple(names)

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Runs the policy and returns its loss."""
        outputs = token_logprobs(model, batch, temperature=self.temperature, with_entropy=True)
        return self.loss_of(outputs.logprobs, outputs.entropy, batch, counts)

    def loss_of(
        self, logprobs_BT: Tensor, entropy_BT: Tensor | None, batch: Batch, counts: GlobalCounts
    ) -> MicroBatchLoss:
        """Returns the loss of log-probs that a forward pass has already given."""
        assert entropy_BT is not None
        sizes = {
            "num_tokens": counts.num_tokens,
            "num_sequences": counts.num_sequences,
            "max_tokens": counts.max_tokens,
        }
        old_BT = logprobs_BT.detach() if self.is_on_policy else batch.fields["old_logprobs"]
        weights = None
        if self.importance is not None:
            weights = importance_weights(
                old_BT, batch.fields["sampling_logprobs"], batch.mask, self.importance
            )
        policy = clipped_policy_loss(
            logprobs_BT,
            old_BT,
            batch.fields["advantages"],
            batch.mask,
            weights_BT=None if weights is None else weights.weights_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            aggregation=self.aggregation,
            **sizes,
        )
        loss = policy.loss
        if self.entropy_coef:
            entropy = entropy_loss(entropy_BT, batch.mask, aggregation=self.aggregation, **sizes)
            loss = loss + self.entropy_coef * entropy
        sums = {
            "loss/policy": policy.loss.detach(),
            "clipped_tokens": policy.clipped_tokens,
            "ratio_sum": policy.ratio_sum,
            "approx_kl_sum": policy.approx_kl_sum,
            "entropy_sum": (entropy_BT.detach() * batch.mask).sum(),
        }
        if weights is not None:
            sums["importance_sum"] = weights.weight_sum
            sums["capped_tokens"] = weights.capped_tokens
            sums["behaviour_kl_sum"] = weights.approx_kl_sum
        if self.kl_coef:
            divergence = kl_loss(
                logprobs_BT,
                batch.fields["reference_logprobs"],
                batch.mask,
                estimator=self.kl_estimator,
                aggregation=self.aggregation,
                **sizes,
            )
            loss = loss + self.kl_coef * divergence
            sums["loss/kl"] = divergence.detach()
        if not self.is_on_policy:
            return MicroBatchLoss(loss, sums)
        gap_BT = (logprobs_BT.detach() - batch.fields["logprobs"]).abs() * batch.mask
        return MicroBatchLoss(loss, sums, {"logprob_gap/max": gap_BT.max()})


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """Clipped squared error of the critic."""

    clip: float
    """How far a value may move from its old one; infinity sets no limit."""
    fields: tuple[str, ...] = ("values", "returns")

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Runs the critic and returns its loss."""
        return self.loss_of(token_values(model, batch), batch, counts)

    def loss_of(self, values_BT: Tensor, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Returns the loss of values that a forward pass has already given."""
        value = clipped_value_loss(
            values_BT,
            batch.fields["values"],
            batch.fields["returns"],
            batch.mask,
            clip=self.clip,
            num_tokens=counts.num_tokens,
        )
        sums = {"loss/value": value.loss.detach(), "clipped_values": value.clipped_tokens}
        return MicroBatchLoss(value.loss, sums)


@dataclass(frozen=True, slots=True)
class SharedObjective:
    """Policy and value loss of one trunk with two heads, from one forward pass."""

    policy: PolicyObjective
    value: ValueObjective
    value_coef: float

    @property
    def fields(self) -> tuple[str, ...]:
        """Per-token fields that the batch must carry."""
        return (*self.policy.fields, *self.value.fields)

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Runs the shared model and returns the sum of both losses."""
        outputs = shared_outputs(
            model, batch, temperature=self.policy.temperature, with_entropy=True
        )
        policy = self.policy.loss_of(outputs.logprobs, outputs.entropy, batch, counts)
        value = self.value.loss_of(outputs.values, batch, counts)
        return MicroBatchLoss(
            policy.loss + self.value_coef * value.loss, {**policy.sums, **value.sums}
        )


@dataclass(frozen=True, slots=True)
class SupervisedObjective:
    """Negative log-likelihood of the masked tokens."""

    fields: tuple[str, ...] = ()

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Runs the policy and returns the mean negative log-likelihood."""
        outputs = token_logprobs(model, batch)
        loss = supervised_loss(outputs.logprobs, batch.mask, num_tokens=counts.num_tokens)
        return MicroBatchLoss(loss, {"loss/supervised": loss.detach()})


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """Pairwise loss of a reward model; rows alternate chosen, rejected."""

    fields: tuple[str, ...] = ()

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Scores both answers of each pair and returns the pairwise loss."""
        scores_B = sequence_scores(model, batch)
        preference = pairwise_reward_loss(
            scores_B[0::2], scores_B[1::2], num_pairs=counts.num_sequences // 2
        )
        return MicroBatchLoss(
            preference.loss,
            {"loss/preference": preference.loss.detach(), "correct_pairs": preference.num_correct},
        )


@dataclass(frozen=True, slots=True)
class DirectPreferenceObjective:
    """Loss of a policy on pairs, beside a frozen reference; rows alternate chosen, rejected."""

    kind: PreferenceLossName
    beta: float
    label_smoothing: float = 0.0
    fields: tuple[str, ...] = ("reference_logprobs",)

    def __call__(self, model: nn.Module, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        """Runs the policy on both answers of each pair in one pass and returns the loss."""
        logprobs_BT = token_logprobs(model, batch).logprobs
        reference_BT = batch.fields["reference_logprobs"] * batch.mask
        chosen, rejected = (
            AnswerLogprobs(
                logprobs_BT[place::2].sum(dim=1),
                reference_BT[place::2].sum(dim=1),
                batch.mask[place::2].sum(dim=1),
            )
            for place in range(2)
        )
        preference = direct_preference_loss(
            chosen,
            rejected,
            kind=self.kind,
            beta=self.beta,
            label_smoothing=self.label_smoothing,
            num_pairs=counts.num_sequences // 2,
        )
        sums = {
            "loss/preference": preference.loss.detach(),
            "correct_pairs": preference.num_correct,
            "chosen_reward_sum": preference.chosen_reward_sum,
            "rejected_reward_sum": preference.rejected_reward_sum,
            "reward_margin_sum": preference.chosen_reward_sum - preference.rejected_reward_sum,
            "chosen_logprob_sum": chosen.policy_B.detach().sum(),
            "rejected_logprob_sum": rejected.policy_B.detach().sum(),
        }
        return MicroBatchLoss(preference.loss, sums)
