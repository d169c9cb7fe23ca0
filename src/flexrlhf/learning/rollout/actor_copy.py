"""A copy of a model without its weights: what an engine of its own is filled into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh  # noqa: TID251  a copy may be cut differently

from flexrlhf.learning.models.heads import SharedActorCritic, pretrained
from flexrlhf.learning.models.quiet import quiet_transformers
from flexrlhf.learning.models.tensor_parallel import tensor_parallelise


def empty_copy(
    model: nn.Module, *, device: torch.device, tensor_mesh: DeviceMesh | None = None
) -> nn.Module:
    """Returns a model like this one, whose weights have memory but hold nothing yet.

    The whole model is never in memory: it is cut before it gets any. Names, tied weights and types
    are those of the original; what no weight is, such as rotary frequencies, is copied.

    Args:
        model: a causal language model or a `SharedActorCritic`, possibly split itself.
        device: of the copy.
        tensor_mesh: the processes that share one copy; all of them call this.

    Raises:
        ConfigError: the model cannot be cut over so many.
    """
    original = pretrained(model)
    with torch.device("meta"), quiet_transformers():
        copy: Any = type(original)(original.config)
        copy.to(original.dtype)
        copy.generation_config = original.generation_config
        whole = SharedActorCritic(copy) if isinstance(model, SharedActorCritic) else copy
    if tensor_mesh is not None:
        tensor_parallelise(whole, tensor_mesh)
    whole.to_empty(device=device).requires_grad_(requires_grad=False)
    copy.tie_weights()
    _copy_buffers(original, copy)
    return whole.eval()


def _copy_buffers(original: nn.Module, copy: nn.Module) -> None:
    for module, name, buffer in _buffers(original):
        there = copy.get_submodule(module)
        empty = there.get_buffer(name)
        setattr(there, name, buffer.detach().to(empty.device, copy=True))


def _buffers(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yields path of the module, name and tensor of each buffer."""
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            yield path, name, buffer
