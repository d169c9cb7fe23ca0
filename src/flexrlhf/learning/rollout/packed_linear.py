"""Matrix products with a copy of the weight that lies in memory as the kernels read it best.

What is best depends on the processor and on how many rows are multiplied. Large weights are read
fastest in oneDNN's own layout, small ones transposed. Where there is AVX-512, one or two rows read
a weight as it is at the speed of the memory, and in another layout at two thirds of it. oneDNN's
operations are private ones of PyTorch, so `can_pack` tries them once, and whoever packs has another
way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which layout serves best on a kind of processor; docs/benchmarks.md has the times."""

    few_rows: int
    """Rows up to which a weight is best read as it lies."""
    least_elements: int
    """Of a weight that oneDNN multiplies faster than MKL does a transposed one."""


_RULES: Final = {"AVX512": _Rule(few_rows=2, least_elements=3 * 2**18)}
_OTHER_RULE: Final = _Rule(few_rows=0, least_elements=2**18)
_BATCH: Final = 32
"""Rows for which oneDNN's layout is chosen; it is the same for 4 to 128."""


class PackedLinear:
    """x W^T + b.

    Args:
        weight: float32 [outputs, inputs] on the CPU.
        bias: float32 [outputs], or None; copied.
        rows: of the inputs, as a rule; others are multiplied as well, but not as fast.
        is_kept: nobody changes the weight meanwhile, so that one that lies well is not copied.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, rows: int, is_kept: bool = False
    ) -> None:
        self._weight_IO: Tensor | None = None
        """W^T, unless oneDNN has it."""
        if is_read_as_it_lies(rows):
            own = weight.contiguous() if is_kept else weight.clone()
            self._weight_IO = own.t()
        elif weight.numel() < _rule().least_elements:
            self._weight_IO = weight.t().clone(memory_format=torch.contiguous_format)
        else:
            self._packed = _reordered(weight)
        self._bias = None if bias is None else bias.clone()

    def __call__(self, inputs: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Returns [..., outputs].

        Args:
            inputs: [..., inputs].
            out: where the product of two-dimensional inputs may be written, and is then what is
                returned; oneDNN takes memory of its own.
        """
        if self._weight_IO is None:
            return torch.ops.mkldnn._linear_pointwise(
                inputs, self._packed, self._bias, "none", [], ""
            )
        if inputs.dim() > 2:
            return linear(inputs, self._weight_IO.t(), self._bias)
        if self._bias is None:
            return torch.mm(inputs, self._weight_IO, out=out)
        return torch.addmm(self._bias, inputs, self._weight_IO, out=out)

    def added_to(self, total: Tensor, inputs: Tensor) -> Tensor:
        """Returns the product added to `total`, [..., outputs], which is not changed."""
        if self._weight_IO is None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                inputs, total, self._packed, self._bias, "add"
            )
        if self._bias is None and inputs.dim() == 2:
            return torch.addmm(total, inputs, self._weight_IO)
        return total + self(inputs)


def is_read_as_it_lies(rows: int) -> bool:
    """Says whether weights of so many rows of inputs are best read as they lie."""
    return rows <= _rule().few_rows


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


def _rule() -> _Rule:
    return _RULES.get(torch.backends.cpu.get_cpu_capability(), _OTHER_RULE)


def _reordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH)
