"""Optimiser and learning-rate schedule of one role."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from flexrlhf.core.errors import RunFailed

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and how its rate moves."""

    learning_rate: float
    total_steps: int
    """Optimiser steps of the whole run; `linear` and `cosine` reach zero there."""
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    """Steps over which the rate rises linearly from zero."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this L2 norm; None sets no limit."""


def learning_rate_at(step: int, settings: OptimizerSettings) -> float:
    """Returns the learning rate of optimiser step `step`, counted from 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    span = max(1, settings.total_steps - settings.warmup_steps)
    done = min(1.0, (step - settings.warmup_steps) / span)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[settings.schedule]
    return settings.learning_rate * factor


def build_optimizer(
    parameters: Iterable[nn.Parameter], settings: OptimizerSettings
) -> torch.optim.AdamW:
    """Returns AdamW over the parameters; matrices decay, vectors (norms, biases) do not."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,
    )


def set_learning_rate(
    optimizer: torch.optim.Optimizer, step: int, settings: OptimizerSettings
) -> float:
    """Makes the optimiser use the rate of step `step`, and returns it."""
    rate = learning_rate_at(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def gradient_not_finite(grad_norm: float, step: int) -> RunFailed:
    """Returns the error of a step whose gradient must not reach the weights."""
    return RunFailed(
        f"The gradient norm is {grad_norm} at optimiser step {step}.",
        "It must be finite.",
        "Lower the learning rate or training.max_grad_norm, or look at the last samples.",
    )
