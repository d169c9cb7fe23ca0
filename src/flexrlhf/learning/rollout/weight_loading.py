"""Installs named whole tensors into the live tensors of a model, or into the parts here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from flexrlhf.core.errors import ShapeError, StaleWeights, nearest
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard


@torch.no_grad()
def load_in_place(targets: Mapping[str, Shard], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copies each tensor, or the part of it that is kept here, into the target of its name.

    Tensors are taken one by one, so an iterable may fetch them lazily. A tensor that already is the
    target is left alone; of tied tensors one name is enough.

    Raises:
        StaleWeights: a name is unknown, or names are missing.
        ShapeError: a tensor has another shape. After either, part of the weights may be new.
    """
    first_names = {name: first for first, held in targets.items() for name in (first, *held.tied)}
    missing = dict.fromkeys(targets)
    for name, tensor in weights:
        if name not in first_names:
            raise StaleWeights(
                f"The new weights name {name!r}, which the engine's model does not have.",
                nearest(name, first_names),
                "Send the state dict of the same architecture.",
            )
        target = targets[first_names[name]]
        if tuple(tensor.shape) != target.shape:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}.",
                f"The engine's model has {target.shape}.",
                "Send the state dict of the same architecture.",
            )
        part = tensor[target.box.within(Box.whole(target.shape))]
        if part.data_ptr() != target.tensor.data_ptr():
            target.tensor.copy_(part)
        missing.pop(first_names[name], None)
    if missing:
        raise StaleWeights(
            f"The new weights lack {len(missing)} of {len(targets)} tensors: {_listed(missing)}.",
            "Every tensor must come with each version; of tied ones, one name is enough.",
            "Send the whole state dict.",
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
