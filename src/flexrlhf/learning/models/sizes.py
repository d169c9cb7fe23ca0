"""How large a model is, and how long a sequence it reads."""

from __future__ import annotations

from torch import nn

from flexrlhf.learning.models.heads import pretrained


def num_parameters(model: nn.Module) -> int:
    """Counts the model's parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def max_positions(model: nn.Module) -> int | None:
    """Returns the longest sequence that the model was made for, None where it has no limit."""
    return getattr(pretrained(model).config.get_text_config(), "max_position_embeddings", None)
