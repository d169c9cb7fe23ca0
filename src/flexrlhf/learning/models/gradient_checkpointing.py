"""Less memory for activations, at the price of a second forward pass."""

from __future__ import annotations

from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.heads import pretrained


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """Makes each layer compute its activations anew in the backward pass.

    Puts the model into training mode, since transformers checkpoints in no other; without dropout
    the modes give the same results.

    Raises:
        ConfigError: the model's family does not support it.
    """
    inner = pretrained(model)
    if not inner.supports_gradient_checkpointing:
        raise ConfigError(
            f"{type(inner).__name__} does not support gradient checkpointing.",
            "Its layers must be able to compute their activations twice.",
            "Set training.gradient_checkpointing = false.",
        )
    inner.gradient_checkpointing_enable({"use_reentrant": False})
    # Needed for frozen embeddings only, and a hook on every forward pass.
    inner.disable_input_require_grads()
    model.train()
