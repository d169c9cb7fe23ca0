"""Matrix products with a copy of the weight that lies in memory as oneDNN's kernels read it.

On a CPU with AVX2 the products of a decode step take half as long so. The operations are private
ones of PyTorch, so `can_pack` tries them once, and whoever packs has another way.
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
        self._weight = _reordered(weight) if self._is_packed else weight.clone()
        self._bias = None if bias is None else bias.clone()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns [..., outputs]."""
        if not self._is_packed:
            return linear(inputs, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, "none", [], "")

    def added_to(self, total: Tensor, inputs: Tensor) -> Tensor:
        """Returns the product added to `total`, [..., outputs], which is not changed."""
        if not self._is_packed:
            return total + linear(inputs, self._weight, self._bias)
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
