"""Section `training`: batches, optimiser and precision."""

from __future__ import annotations

from typing import Literal

from flexrlhf.config.section import (
    Auto,
    Count,
    DecayRate,
    Flag,
    NonNegative,
    Positive,
    Section,
    Threads,
    WholeNumber,
)


class Training(Section):
    """How many samples make a step, and what the step does."""

    iterations: Count = 50
    """Times that the loop goes round."""
    prompts_per_iteration: Count = 16
    """Prompts of an iteration; rows or pairs where nothing is generated."""
    mini_batch_samples: Auto | Count = "auto"
    """Samples per optimiser step; has to divide those of an iteration; auto: all of them."""
    micro_batch_tokens: Auto | Count = "auto"
    """Tokens, padding included, per forward and backward pass; auto: found by a trial step."""
    micro_batch_samples: Count | None = None
    """Samples per forward and backward pass, instead of a number of tokens."""

    learning_rate: Auto | Positive = "auto"
    """Peak learning rate; auto: 1e-5 for sft and reward_model, 1e-6 for the others."""
    critic_learning_rate: Positive = 5e-6
    """ppo: peak learning rate of a critic that is a model of its own."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to 0."""
    warmup_steps: WholeNumber = 0
    """Optimiser steps in which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of AdamW."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    """Decay rates of AdamW's two averages."""
    epsilon: Positive = 1e-8
    """AdamW's constant under the square root's sum."""
    max_grad_norm: Positive | None = 1.0
    """The gradient is scaled down to this norm; null sets no limit."""

    gradient_checkpointing: Flag = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast; the weights stay in `model.ROLE.dtype`."""
    threads: Auto | Threads = "auto"
    """CPU threads; auto: the physical cores."""
