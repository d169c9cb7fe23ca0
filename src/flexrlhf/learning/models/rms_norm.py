"""RMS norms with a gradient of their own; that of `transformers` is one of each operation.

A chain of operations goes through the hidden states four times forward and about twelve times
backward, which small models notice.
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor, nn

_NORMS: Final = frozenset({"LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})


def rms_normed(norm: Any, hidden: Tensor) -> Tensor:
    """Returns what a norm makes of hidden states [..., D], with the same gradients.

        y = w * x / sqrt(mean(x^2) + epsilon)

    A module of any other kind or with hooks, numbers of fewer bits and weights in parts go through
    the module; so do those in float64 that it rounds to float32 on the way.
    """
    exact = torch.float64 if getattr(norm, "is_exact", False) else torch.float32
    if (
        type(norm).__name__ not in _NORMS
        or norm._forward_hooks
        or norm._forward_pre_hooks
        or type(norm.weight) is not nn.Parameter
        or not hidden.dtype == norm.weight.dtype == exact
        or torch.is_autocast_enabled(hidden.device.type)
    ):
        return norm(hidden)
    if torch.is_grad_enabled():
        return cast("Tensor", _RMSNorm.apply(hidden, norm.weight, norm.variance_epsilon))
    scales = _scales(hidden, norm.variance_epsilon)
    return (hidden * scales).mul_(norm.weight)


def _scales(hidden: Tensor, epsilon: float) -> Tensor:
    """Returns 1 / sqrt(mean(x^2) + epsilon), [..., 1]."""
    norms = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return norms.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scales = _scales(hidden, epsilon)
        even = hidden * scales
        ctx.save_for_backward(even, scales, weight)
        return even * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        even, scales, weight = ctx.saved_tensors
        (gradient,) = gradients
        products = gradient * even
        # Through the scale: the part of the gradient along the vector itself goes.
        along = (products @ weight).div_(-weight.shape[0]).unsqueeze(-1)
        of_hidden = (gradient * weight).addcmul_(even, along).mul_(scales)
        of_weight = products.flatten(0, -2).sum(dim=0) if ctx.needs_input_grad[1] else None
        return of_hidden, of_weight, None
