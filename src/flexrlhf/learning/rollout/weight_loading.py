"""Installs named tensors into a live module without replacing its tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ShapeError, StaleWeights, nearest


@torch.no_grad()
def load_in_place(module: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copies each tensor into the module's tensor of the same state-dict name.

    Tensors are taken one by one, so an iterable may fetch them lazily. A tensor that already is the
    module's own is left alone; of tied tensors one name is enough.

    Raises:
        StaleWeights: a name is unknown, or names are missing.
        ShapeError: a tensor has another shape. After either, part of the weights may be new.
    """
    own = module.state_dict(keep_vars=True)
    loaded: set[int] = set()
    for name, tensor in weights:
        if name not in own:
            raise StaleWeights(
                f"The new weights name {name!r}, which {type(module).__name__} does not have.",
                nearest(name, own),
                "Send the state dict of the same architecture.",
            )
        if tensor.shape != own[name].shape:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}.",
                f"The engine's model has {tuple(own[name].shape)}.",
                "Send the state dict of the same architecture.",
            )
        if tensor.data_ptr() != own[name].data_ptr():
            own[name].copy_(tensor)
        loaded.add(id(own[name]))
    missing = [name for name, tensor in own.items() if id(tensor) not in loaded]
    if missing:
        raise StaleWeights(
            f"The new weights lack {len(missing)} of {len(own)} tensors: {_listed(missing)}.",
            "Every tensor must come with each version; of tied ones, one name is enough.",
            "Send the whole state dict.",
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
