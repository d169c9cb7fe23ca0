"""The head that turns hidden states into logits, and the check that it is all there is to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional

from flexrlhf.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_TESTED_FAMILIES: Final = frozenset({"llama", "qwen2", "qwen3", "gpt2"})
"""Families whose log-probs are held against their own logits in the tests."""


@dataclass(frozen=True, slots=True)
class OutputHead:
    """logits = multiplier * (W h + b)."""

    weight: Tensor
    """[V, D]."""
    bias: Tensor | None
    """[V]."""
    multiplier: float

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [..., V] of hidden states [..., D], in the type of the weight.

        Autocast is kept out: logits rounded to bfloat16 move log-probs by up to 2^-8 of the largest
        logit, and engine and trainer, whose hidden states differ a little, by as much apart.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            logits = functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)
        return self.multiplier * logits


def output_head(model: PreTrainedModel) -> OutputHead:
    """Returns the head of a causal language model.

    Raises:
        ConfigError: the logits are no linear function of the hidden states.
    """
    module = model.get_output_embeddings()
    if module is None:
        raise _unsupported(model, "it has no language-model head")
    config = model.config.get_text_config()
    if getattr(config, "final_logit_softcapping", None):
        raise _unsupported(model, f"it caps them at {config.final_logit_softcapping}")
    return OutputHead(module.weight, getattr(module, "bias", None), _logit_multiplier(config))


def is_tested(config: PreTrainedConfig) -> bool:
    """Says whether a family needs no trial with real weights."""
    return config.model_type in _TESTED_FAMILIES


def check_output_head(model: PreTrainedModel) -> None:
    """Compares a few logits of the model with those of its `OutputHead`.

    A family may change its logits in a way that no known config key tells; that would silently
    give wrong log-probs. Families that the tests cover are not checked again.

    Raises:
        ConfigError: they differ.
    """
    head = output_head(model)
    if is_tested(model.config):
        return
    tokens_BT = torch.arange(4, device=model.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        hidden_BTD = model.base_model(tokens_BT, use_cache=False).last_hidden_state
        ours = head.logits(hidden_BTD).double()
        theirs = model(tokens_BT, use_cache=False).logits.double()
    # Rounding in bfloat16 is far below this, any other formula far above.
    if (ours - theirs).abs().max() > 0.02 * theirs.abs().max():
        raise _unsupported(model, "they are not head times last hidden state")


def _logit_multiplier(config: PreTrainedConfig) -> float:
    """Cohere multiplies its logits by `logit_scale`, Granite divides by `logits_scaling`."""
    multiplier = getattr(config, "logit_scale", None) or 1.0
    divisor = getattr(config, "logits_scaling", None) or 1.0
    return float(multiplier) / float(divisor)


def _unsupported(model: PreTrainedModel, reason: str) -> ConfigError:
    return ConfigError(
        f"The logits of {type(model).__name__} cannot be computed token by token: {reason}.",
        "Log-probs need logits that are a linear function of the last hidden state.",
        "Choose another family: llama, qwen2, qwen3 and gpt2 are tested.",
    )
