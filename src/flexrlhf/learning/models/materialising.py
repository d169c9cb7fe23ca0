"""Gives memory to the weights of a model that was split before it had any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from flexrlhf.learning.models.sizes import require_room


def materialise(
    root: nn.Module, model: nn.Module, names: Sequence[Sequence[str]], device: torch.device
) -> None:
    """Makes room on a device for the parameters that this process holds, and for nothing else.

    Args:
        root: the model, or the module around it that shards it.
        model: split, on the meta device but for its buffers, which move to the device.
        names: of the whole model's parameters; those of one list are one parameter.
        device: where parameters lie.

    Raises:
        ConfigError: they do not fit into memory.
    """
    require_room(model)
    buffers = {
        (module, name): buffer.to(device)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    }
    held = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    root.to_empty(device=device)
    for (module, name), buffer in buffers.items():
        setattr(module, name, buffer)
    for several in names:
        first, *tied = [name for name in several if name in held] or [""]
        for name in tied:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, model.get_parameter(first))
