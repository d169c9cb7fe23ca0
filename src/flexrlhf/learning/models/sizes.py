"""How large a model is, and how long a sequence it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.machine import available_bytes
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.weight_parts import local

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def num_parameters(model: nn.Module) -> int:
    """Counts the model's parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def max_positions(model: nn.Module) -> int | None:
    """Returns the longest sequence that the model was made for, None where it has no limit."""
    return getattr(pretrained(model).config.get_text_config(), "max_position_embeddings", None)


def require_memory(auto_class: Any, config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Checks that the weights of a model fit into free memory, so that the system kills nothing.

    Args:
        auto_class: of transformers.
        config: of the model.
        dtype: in which the weights are held.

    Raises:
        ConfigError: they do not fit.
    """
    with torch.device("meta"):
        model = auto_class.from_config(config, trust_remote_code=False)
    count = num_parameters(model)
    _require_free(f"A {config.model_type} model of {count:,} weights", count * dtype.itemsize)


def require_room(model: nn.Module) -> None:
    """Checks that what a process holds of a model fits into free memory.

    Args:
        model: split, on the meta device.

    Raises:
        ConfigError: it does not fit.
    """
    held = [local(parameter) for parameter in model.parameters()]
    _require_free("This process's part of a model", sum(tensor.nbytes for tensor in held))


def _require_free(what: str, needed: int) -> None:
    free = available_bytes()
    if needed > free:
        raise ConfigError(
            f"{what} needs {needed / 1e9:,.1f} GB of memory, {free / 1e9:,.1f} GB are free.",
            "Weights must fit, and those of a trained model four times.",
            "Choose a smaller model or architecture, or a machine with more memory.",
        )
