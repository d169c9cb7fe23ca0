"""Matrix products with a copy of the weight that lies in memory as the kernels read it best.

On a CPU with AVX2 the products of a decode step take half as long with oneDNN's layout. Its
operations are private ones of PyTorch, so `can_pack` tries them once, and whoever packs has another
way. Small weights are transposed instead: MKL multiplies a few rows with them in up to a third of
the time, and a call costs less.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

_LEAST_ELEMENTS: Final = 2**18
"""Of a weight worth packing: a call of oneDNN's costs as much as a smaller product takes."""
_BATCH: Final = 32
"""Rows for which the layout is chosen; it is the same for 4 to 128, and serves 1 as well."""


class PackedLinear:
    """x W^T + b with an own copy of W.

    Args:
        weight: float32 [outputs, inputs] on the CPU; copied.
        bias: float32 [outputs], or None; copied.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._is_packed = weight.numel() >= _LEAST_ELEMENTS
        self._weight = (
            _reordered(weight)
            if self._is_packed
            else weight.t().clone(memory_format=torch.contiguous_format)
        )
        self._bias = None if bias is None else bias.clone()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns [..., outputs]."""
        if not self._is_packed:
            if inputs.dim() > 2:
                return linear(inputs, self._weight.t(), self._bias)
            if self._bias is None:
                return torch.mm(inputs, self._weight)
            return torch.addmm(self._bias, inputs, self._weight)
        return torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, "none", [], "")

    def added_to(self, total: Tensor, inputs: Tensor) -> Tensor:
        """Returns the product added to `total`, [..., outputs], which is not changed."""
        if not self._is_packed:
            if self._bias is None and inputs.dim() == 2:
                return torch.addmm(total, inputs, self._weight)
            return total + self(inputs)
        return torch.ops.mkldnn._linear_pointwise.binary(
            inputs, total, self._weight, self._bias, "add"
        )


@cache
def can_pack() -> bool:
    """Says whether this build of PyTorch has the operations, and they give what they should."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight, inputs = torch.eye(4), torch.arange(8.0).view(2, 4)
    try:
        packed = _reordered(weight)
        plain = torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], "")
        added = torch.ops.mkldnn._linear_pointwise.binary(inputs, inputs, packed, None, "add")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(plain, inputs) and torch.equal(added, 2 * inputs)


def _reordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH)
