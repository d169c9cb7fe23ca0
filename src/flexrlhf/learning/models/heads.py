"""Scalar heads on a trunk: fresh ones, and actor and critic that share one trunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.tensor_files import read_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VALUE_HEAD_FILE: Final = "value_head.safetensors"


class SharedActorCritic(nn.Module):
    """A causal language model whose trunk also carries a value head.

    The value of the state before token t is the value head's output at position t - 1, the
    position whose language-model head predicts that token.

    Args:
        trunk: the causal language model, its own head included.
        seed: draws the fresh value head.
    """

    def __init__(self, trunk: PreTrainedModel, *, seed: int = 0) -> None:
        super().__init__()
        self.trunk = trunk
        self.value_head = nn.Linear(
            trunk.config.get_text_config().hidden_size, 1, dtype=trunk.dtype, device=trunk.device
        )
        refresh_head(self.value_head, seed)

    def load_value_head(self, file: Path) -> None:
        """Reads the weights of the value head from a safetensors file.

        Raises:
            ConfigError: the file is damaged, or belongs to another model.
        """
        try:
            self.value_head.load_state_dict(read_tensors(file))
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"The value head {file} does not fit its trunk: {error}",
                f"It holds weight [1, {self.value_head.in_features}] and bias [1].",
                "Restore the file, or remove it for a fresh value head.",
            ) from error


def pretrained(model: nn.Module) -> PreTrainedModel:
    """Returns the Hugging Face model: the trunk of a `SharedActorCritic`, else the model itself."""
    return cast("PreTrainedModel", model.trunk if isinstance(model, SharedActorCritic) else model)


def refresh_head(head: nn.Linear, seed: int) -> None:
    """Draws the weights of a scalar head anew: normal with deviation 1 / (D + 1), bias zero.

    So small that values and scores start near zero, but not zero, or else no gradient would reach
    the trunk in the first step. The seed gives the same numbers for every dtype and device.

    Source: OpenRLHF's initialisation of value and reward heads.
    """
    with torch.no_grad():
        head.weight.copy_(head_weight(head.in_features, seed))
        if head.bias is not None:
            head.bias.zero_()


def head_weight(width: int, seed: int) -> Tensor:
    """Returns the weight [1, D] of a fresh scalar head."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, width, generator=generator) / (width + 1)
