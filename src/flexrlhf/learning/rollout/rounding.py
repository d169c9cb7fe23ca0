"""Whether an engine can generate with weights in int8."""

from __future__ import annotations

from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.families import FAMILIES, RotaryFamily
from flexrlhf.learning.rollout.int8_linear import can_multiply_int8
from flexrlhf.learning.rollout.packed_family import unpackable_reason


def check_rounding(
    model: nn.Module, *, engine: str, rounds: bool, speculates: bool = False
) -> None:
    """Checks that an engine can generate with the weights of a model in int8.

    Args:
        model: a causal language model, or the part of one that is here.
        engine: its name.
        rounds: whether it can at all.
        speculates: whether it reads several tokens of an answer at a time.

    Raises:
        ConfigError: it cannot.
    """
    if speculates:
        raise ConfigError(
            "Several tokens would be tried at a time with weights in int8.",
            "Reading them together differs in the last bits, of which rounding to 8 bits may make "
            "another answer.",
            "Set rollout.speculation: none, or rollout.weights: same.",
        )
    reason = _obstacle(model) if rounds else "it multiplies by the weights as they are"
    if reason is not None:
        raise ConfigError(
            f"The {engine} engine cannot generate with weights in int8: {reason}.",
            "The native engine can: whole Llama, Qwen2 and Qwen3 models, in float32 on a CPU.",
            "Set rollout.weights: same, or choose such a model, engine and placement.",
        )


def _obstacle(model: nn.Module) -> str | None:
    if FAMILIES.get(type(model).__name__) is not RotaryFamily:
        return f"{type(model).__name__} has no such products here"
    if not can_multiply_int8():
        return "this build of PyTorch does not add up products of int8 numbers exactly"
    return unpackable_reason(model)
