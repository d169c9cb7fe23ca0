"""Cuts a decoder to one pipeline stage: some of its layers, and the embeddings or heads at an end.

What the stage lacks is replaced by modules without weights, so that every weight keeps its name and
a pass of the trunk runs as ever: it begins with what came from the stage before, and ends with what
the stage behind goes on from.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.model_families import STAGED_FAMILIES
from flexrlhf.learning.models.heads import pretrained

_FINAL_NORMS: Final = {"llama": "norm", "qwen2": "norm", "qwen3": "norm", "gpt2": "ln_f"}
"""The norm behind the last layer, of each of `STAGED_FAMILIES`."""
_HEADS: Final = ("lm_head", "score", "value_head")


class PassedOn(nn.Module):
    """Stands for a layer, norm or head of another stage, and gives what it gets."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """Returns the hidden states as they are."""
        return hidden


class Received(nn.Module):
    """Stands for the embeddings in every stage but the first: hidden states of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        """[B, T, D] of the pass that is about to run."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the hidden states that were put here for these tokens."""
        hidden, self.hidden = self.hidden, None
        assert hidden is not None, "A stage behind the first begins with what it received."
        assert hidden.shape[:-1] == tokens.shape, "Both stages run the same micro-batch."
        return hidden


class _NoPositions(nn.Module):
    """Stands for learnt positions, which the first stage has added."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros((), device=positions.device, dtype=torch.int8)


def cut_to_stage(model: nn.Module, stage: int, num_stages: int) -> Received | None:
    """Keeps one stage of a whole model, in place; weights that are tied stay so at either end.

    Args:
        model: a causal language model, its sequence-classification twin or a `SharedActorCritic`.
        stage: which one, from 0.
        num_stages: that make up the model.

    Returns:
        Where a pass finds what the stage before gave; None in the first stage.

    Raises:
        ConfigError: the family cannot be cut, or has fewer layers than stages.
    """
    check_pipeline(model, num_stages)
    trunk: Any = pretrained(model).base_model
    layers = next(m for m in trunk.children() if isinstance(m, nn.ModuleList))
    held = stage_layers(len(layers), stage, num_stages)
    for index in range(len(layers)):
        if index not in held:
            layers[index] = PassedOn()
    if stage < num_stages - 1:
        _drop_heads(model, trunk)
    return _receive(trunk) if stage > 0 else None


def check_pipeline(model: nn.Module, num_stages: int) -> None:
    """Checks that a model can be cut into so many stages.

    Raises:
        ConfigError: it cannot; says what would do.
    """
    config = pretrained(model).config.get_text_config()
    if config.model_type not in STAGED_FAMILIES:
        raise ConfigError(
            f"pipeline_parallel = {num_stages}, but {config.model_type} models cannot be cut into "
            "stages.",
            f"Pipelines work for {', '.join(STAGED_FAMILIES)}.",
            "Set pipeline_parallel = 1 and shard by ZeRO instead, or choose one of these families.",
        )
    if num_stages > config.num_hidden_layers:
        raise ConfigError(
            f"pipeline_parallel = {num_stages}, but the model has {config.num_hidden_layers} "
            "layers.",
            "Every stage holds at least one layer.",
            f"Set pipeline_parallel to {config.num_hidden_layers} or less.",
        )


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """Returns the layers of a stage: equally many, and one more in the first ones if need be.

    The last stage, which has the heads, never has more layers than another.
    """
    least, more = divmod(num_layers, num_stages)
    first = stage * least + min(stage, more)
    return range(first, first + least + (stage < more))


def _drop_heads(model: nn.Module, trunk: nn.Module) -> None:
    """Takes away what comes behind the last layer."""
    family = pretrained(model).config.get_text_config().model_type
    setattr(trunk, _FINAL_NORMS[family], PassedOn())
    for owner in (model, pretrained(model)):
        for name in _HEADS:
            if isinstance(getattr(owner, name, None), nn.Module):
                setattr(owner, name, PassedOn())


def _receive(trunk: Any) -> Received:
    """Replaces what turns tokens into hidden states."""
    received = Received()
    for name, module in list(trunk.named_children()):
        if isinstance(module, nn.Embedding) and module is not trunk.get_input_embeddings():
            setattr(trunk, name, _NoPositions())
    trunk.set_input_embeddings(received)
    return received
