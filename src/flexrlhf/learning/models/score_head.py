"""The scalar head of a sequence-classification model."""

from __future__ import annotations

from typing import Final

from torch import nn

from flexrlhf.core.errors import ConfigError

SCORE_WEIGHT: Final = "score.weight"


def score_head(scorer: nn.Module) -> nn.Linear:
    """Returns the linear head that turns a hidden state into one number.

    Raises:
        ConfigError: the model has no such head, as encoders like BERT.
    """
    head = getattr(scorer, "score", None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ConfigError(
            f"{type(scorer).__name__} has no linear head `score` with one output.",
            "Critics and reward models are decoders with one label, "
            "like LlamaForSequenceClassification.",
            "Choose a decoder family: llama, qwen2, qwen3, gpt2.",
        )
    return head
