"""Checks that tensors and counts belong together, made before any arithmetic on them."""

from __future__ import annotations

import torch
from torch import Tensor

from flexrlhf.core.errors import ShapeError


def check_per_token(mask_BT: Tensor, **tensors: Tensor) -> None:
    """Checks that the mask is a bool [B, T] and that every other tensor has its shape.

    Raises:
        ShapeError: shapes differ, or the mask is not bool.
    """
    _check_one_shape("BT", mask=mask_BT, **tensors)
    if mask_BT.dtype != torch.bool:
        raise ShapeError(
            f"mask_BT is of type {mask_BT.dtype}.",
            "A mask is torch.bool: True exactly at trainable tokens.",
            "Pass mask_BT.bool().",
        )


def check_per_sequence(**tensors: Tensor) -> None:
    """Checks that every tensor is one [B].

    Raises:
        ShapeError: shapes differ.
    """
    _check_one_shape("B", **tensors)


def check_counts(**counts: float) -> None:
    """Checks that every count may divide a sum.

    Raises:
        ShapeError: a count is not positive.
    """
    for name, count in counts.items():
        if not count > 0:
            raise ShapeError(
                f"{name} = {count}.",
                "A loss is divided by the counts of the global batch, which are at least 1.",
                "Count over all shards and micro-batches, and skip a step without any.",
            )


def _check_one_shape(axes: str, **tensors: Tensor) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) == 1 and len(next(iter(shapes))) == len(axes):
        return
    listed = ", ".join(f"{name}_{axes} is {list(t.shape)}" for name, t in tensors.items())
    raise ShapeError(
        f"Shapes do not fit together: {listed}.",
        f"All are of one shape [{', '.join(axes)}].",
        "Take every tensor from the same batch, aligned to the full sequence.",
    )
