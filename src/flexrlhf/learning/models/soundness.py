"""Whether a model computes at all: its shape holds together and its weights are usable numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.foreign_errors import complaining
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.pipeline import Pipeline

_LARGEST: Final = 1e18
"""The product of two larger weights overflows in float32."""


def unusable_weight(model: nn.Module) -> str | None:
    """Returns `NAME holds NUMBER` for a weight that nothing can be computed with, or None."""
    for name, parameter in model.named_parameters():
        if said := unusable_tensor(name, parameter):
            return said
    for name, buffer in model.named_buffers():  # a mask may hold minus infinity
        if buffer.is_floating_point() and any(map(math.isnan, _extremes(buffer))):
            return f"{name} holds nan"
    return None


def unusable_tensor(name: str, tensor: Tensor) -> str | None:
    """Returns `NAME holds NUMBER` if nothing can be computed with a weight, or None."""
    for extreme in _extremes(tensor):
        if not abs(extreme) < _LARGEST:  # nan is not below anything
            return f"{name} holds {extreme:g}"
    return None


def _extremes(tensor: Tensor) -> list[float]:
    """Returns the smallest and the largest number; nan where the tensor holds one."""
    return [extreme.item() for extreme in torch.aminmax(tensor.detach())] if tensor.numel() else []


def check_soundness(role: str, model: nn.Module) -> None:
    """Checks the weights of a freshly loaded model, and lets it read two tokens.

    Found here, a wrong number of heads or a damaged weight is said in the terms of the model. Later
    it would be a shape that does not match or a loss that is not finite; or nothing at all, since
    PyTorch's attention on CPUs turns nan into zeros.

    Raises:
        ConfigError: a weight is not finite or out of range, or the forward pass fails.
    """
    _refuse_unusable(role, unusable_weight(model))
    _check_pass(
        role, model, pretrained(model).device, lambda tokens_BT: _run(pretrained(model), tokens_BT)
    )


def check_part(role: str, model: ParallelModel) -> None:
    """Does the same with a model that is split; all processes of the role call it together.

    A pipeline's stages each run alone, behind the first one on zeros.

    Raises:
        ConfigError: a weight is not finite or out of range, or the forward pass fails.
    """
    named = ((part.name, part.tensor) for part in model.parts)
    said = (unusable_tensor(name, tensor) for name, tensor in named)
    assert model.mesh is not None, "a whole model is checked by check_soundness"
    # Told to all, since those without a fault would wait for the others in the pass.
    of_all = model.mesh.gather(next(filter(None, said), None))
    _refuse_unusable(role, next(filter(None, of_all), None))
    pipeline = model.pipeline
    if pipeline is None:
        _check_pass(
            role,
            model.module,
            model.device,
            lambda tokens_BT: model.run(lambda whole: _run(pretrained(whole), tokens_BT)),
        )
        model.weights_changed()
    else:
        _check_pass(
            role, model.module, model.device, lambda tokens_BT: _run_stage(pipeline, tokens_BT)
        )


def _refuse_unusable(role: str, unusable: str | None) -> None:
    if unusable is not None:
        raise ConfigError(
            f"The model of {role} cannot compute: {unusable}.",
            f"Every weight is a finite number, below {_LARGEST:g} in size.",
            "Load an earlier state of the model, download it again, or correct its architecture.",
        )


def _check_pass(
    role: str, model: nn.Module, device: torch.device, run: Callable[[Tensor], Any]
) -> None:
    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The model of {role} does not work: {said}",
            "Its architecture, or config.json, must describe a model of its family.",
            "Correct the numbers of layers and heads, the head width and the rotary settings.",
        )

    trunk = pretrained(model)
    if getattr(trunk.config.get_text_config(), "num_hidden_layers", 1) < 1:
        raise complaint("it has no layers.")
    tokens_BT = torch.zeros(1, 2, dtype=torch.long, device=device)
    with complaining(complaint), torch.no_grad():
        run(tokens_BT)


def _run(module: nn.Module, tokens_BT: Tensor) -> Any:
    return module(tokens_BT, attention_mask=torch.ones_like(tokens_BT), use_cache=False)


def _run_stage(pipeline: Pipeline, tokens_BT: Tensor) -> None:
    trunk = pretrained(pipeline.module)
    if pipeline.received is not None:
        width = trunk.config.get_text_config().hidden_size
        device = tokens_BT.device
        hidden_BTD = torch.zeros(*tokens_BT.shape, width, dtype=pipeline.dtype, device=device)
        pipeline.received.hidden = hidden_BTD
    _run(trunk.base_model, tokens_BT)
