"""Section `algorithm`: what is learnt from the answers, and how cautiously."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from flexrlhf.config.section import (
    Auto,
    Count,
    Flag,
    Fraction,
    NonNegative,
    OpenFraction,
    Positive,
    Section,
)
from flexrlhf.core.names import AlgorithmName, ImportanceName, PreferenceLossName


def _hide_default(schema: dict[str, Any]) -> None:
    """The default serves configs made in Python; a file has to name its algorithm."""
    del schema["default"]


class Algorithm(Section):
    """The algorithm and its constants; those that it has no use for are not looked at."""

    name: Annotated[AlgorithmName, Field(json_schema_extra=_hide_default)] = "ppo"
    """What the run learns from: sampled answers, preferences (dpo, ipo, kto), or rows (sft)."""
    share_actor_critic: Flag = False
    """ppo: actor and critic are one trunk with two heads."""
    epochs: Count = 1
    """Passes over the samples of an iteration."""

    kl_coef: Auto | NonNegative = "auto"
    """Weight of the KL distance to the reference, per nat; auto: 0 for dapo and dr_grpo, which
    leave the term out, 0.05 for the others."""
    kl_estimator: Auto | Literal["k1", "k2", "k3"] = "auto"
    """Estimator of KL from sampled tokens; auto: k1 in the reward, k3 in the loss."""
    kl_placement: Auto | Literal["reward", "loss"] = "auto"
    """Where KL is charged; auto: reward for ppo, rloo and reinforce_pp, loss for the others."""
    kl_target: Positive | None = None
    """Nats per answer that an adaptive `kl_coef` steers to; null keeps `kl_coef` fixed."""
    kl_horizon: Count = 10_000
    """Samples over which an adaptive `kl_coef` moves."""

    gamma: Fraction = 1.0
    """Discount per token."""
    gae_lambda: Fraction = 0.95
    """ppo: weight of longer returns in the advantage."""
    whiten_advantages: Flag = True
    """ppo: shift and scale advantages to mean 0 and deviation 1 over the whole batch."""
    scale_by_std: Flag = True
    """grpo: divide advantages by the group's standard deviation."""
    advantage_epsilon: Auto | Positive = "auto"
    """Added before dividing by a deviation; auto: 1e-4 with groups, else 1e-8 (to the variance)."""

    clip: OpenFraction = 0.2
    """How far the probability ratio may fall below 1."""
    clip_high: Auto | Positive = "auto"
    """How far the probability ratio may rise above 1; auto: the same as `clip`."""
    dual_clip: Annotated[float, Strict(), Field(gt=1)] | None = None
    """Largest ratio that counts where the advantage is negative; null sets no limit."""
    value_clip: Positive | None = 0.2
    """ppo: how far a value may move from its old one; null sets no limit."""
    value_coef: NonNegative = 0.1
    """ppo with a shared trunk: weight of the value loss beside the policy loss."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus, per nat."""
    loss_aggregation: (
        Auto | Literal["token_mean", "sequence_mean", "sequence_sum", "token_sum_norm"]
    ) = "auto"
    """How token losses become one number; auto: token_mean."""

    importance: Auto | ImportanceName = "auto"
    """Weight of what the engine drew, where it is another policy than the trainer's: the ratio of
    the two probabilities, for each `token` or for the whole answer (`sequence`); auto: token where
    `rollout.weights` is int8, else none."""
    importance_cap: Positive | None = 2.0
    """Largest such weight; null sets no limit."""

    beta: Positive = 0.1
    """dpo, ipo: how dear the distance to the reference is; in ipo the paper's tau."""
    loss_type: Auto | PreferenceLossName = "auto"
    """dpo: what is minimised on pairs, by TRL's names; auto: sigmoid, for ipo ipo. sigmoid_norm and
    ipo look at the mean over an answer's tokens, the others at the sum."""
    label_smoothing: Annotated[float, Strict(), Field(ge=0, lt=0.5)] = 0.0
    """dpo with sigmoid or robust: how likely a pair is the wrong way round."""
