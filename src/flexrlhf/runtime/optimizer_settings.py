"""The optimiser of a role, as the config says."""

from __future__ import annotations

from flexrlhf.config.resolution import batch_sizes, settled
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.names import Role
from flexrlhf.learning.training.optimizer import OptimizerSettings


def optimizer_settings(role: Role, config: RunConfig) -> OptimizerSettings:
    """Returns the optimiser and schedule of a trained role of a resolved run."""
    training = config.training
    rates = {"critic": training.critic_learning_rate}
    return OptimizerSettings(
        learning_rate=rates.get(role, settled(training.learning_rate)),
        total_steps=batch_sizes(config).num_steps,
        schedule=training.schedule,
        warmup_steps=training.warmup_steps,
        weight_decay=training.weight_decay,
        betas=training.betas,
        epsilon=training.epsilon,
        max_grad_norm=training.max_grad_norm,
    )
