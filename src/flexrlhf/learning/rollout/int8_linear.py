"""Matrix products in int8: both the weight and what it multiplies are rounded to 8 bits.

A weight has one scale per output, an input one per row. Sums of products of whole numbers are
exact, so a product does not depend on the rows beside it; with one scale for a whole batch, as in
PyTorch's dynamically quantised layers, it would. But where a number lies between two steps
its last bit decides, and what float32 adds up elsewhere, in attention, has other last bits in
another batch: steps of 1/127 make that visible.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

_LARGEST: Final = 127
"""Of a rounded number. -128 is left out, so that scales serve both signs."""
_BLOCK: Final = 256
"""Outputs of a weight that are rounded at a time."""


class Int8Linear:
    """x W^T + b, nearly, or (x f) W^T + b.

    Source: weights per output channel and activations per token, SmoothQuant, table 2 (arXiv
    2211.10438); as rollout weights: FlashRL (Liu et al. 2025).

    Args:
        weight: float32 [outputs, inputs] on the CPU.
        bias: float32 [outputs], or None; copied.
        factor: f, [inputs]: of a norm, which makes its numbers more alike, so that rounding them
            costs less than if it were a part of the weight; copied; None: 1.
        is_kept: of no account, for a rounded weight is a copy: see `PackedLinear`.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        factor: Tensor | None = None,
        is_kept: bool = False,
    ) -> None:
        del is_kept
        weight_OI = torch.empty(weight.shape, dtype=torch.int8)
        self._scale_O = torch.empty(len(weight))
        for first in range(0, len(weight), _BLOCK):  # what lies between stays in the cache
            block = slice(first, first + _BLOCK)
            weight_OI[block], scale_O1 = rounded(weight[block])
            self._scale_O[block] = scale_O1.squeeze(1)
        self._weight_IO = weight_OI.t()
        self._factor_I = None if factor is None else factor.clone()
        self._bias = None if bias is None else bias.clone()

    def __call__(self, inputs: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Returns [..., outputs], in memory of its own whatever `out` is: see `PackedLinear`."""
        del out
        product, scale = self._product(inputs)
        product.mul_(scale)
        return product if self._bias is None else product.add_(self._bias)

    def added_to(self, total: Tensor, inputs: Tensor) -> Tensor:
        """Returns the product added to `total`, [..., outputs], which is not changed."""
        product, scale = self._product(inputs)
        added = torch.addcmul(total, product, scale)
        return added if self._bias is None else added.add_(self._bias)

    def _product(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the product short of the scales of the inputs, and these, [..., 1]."""
        whole, scale = rounded(inputs if self._factor_I is None else inputs * self._factor_I)
        sums_NO = torch._int_mm(whole.flatten(0, -2), self._weight_IO)
        return (sums_NO * self._scale_O).unflatten(0, inputs.shape[:-1]), scale


def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int8 numbers, and what they are multiplied by to be nearly `values`.

    An error is at most half a scale, which is 1/127 of the largest number of a row.

    Args:
        values: float32 [..., inputs].

    Returns:
        [..., inputs] and [..., 1]. Where a row holds nan or infinity, its scale does.
    """
    scale = values.abs().amax(dim=-1, keepdim=True)
    scale.mul_(1 / _LARGEST).clamp_(min=torch.finfo(values.dtype).tiny)
    return (values / scale).round_().to(torch.int8), scale


@cache
def can_multiply_int8() -> bool:
    """Says whether this build of PyTorch adds up products of int8 numbers without an error.

    The operation is a private one, and kernels for processors without an instruction for it may cut
    sums at 16 bits.
    """
    weight = torch.full((48, 256), _LARGEST, dtype=torch.int8)
    weight[1::2] = -_LARGEST
    for rows in (1, 3, 32):
        inputs = torch.full((rows, 256), _LARGEST, dtype=torch.int8)
        try:
            sums = torch._int_mm(inputs, weight.t())
        except (AttributeError, RuntimeError):
            return False
        if not torch.equal(sums.long(), inputs.long() @ weight.long().t()):
            return False
    return True
