"""RMS norms against the module of `transformers`: values and gradients."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from flexrlhf.learning.models.exact_norms import make_norms_exact
from flexrlhf.learning.models.rms_norm import rms_normed

WIDTH = 24


@pytest.fixture
def norm() -> Qwen2RMSNorm:
    generator = torch.Generator().manual_seed(1)
    made = Qwen2RMSNorm(WIDTH, eps=1e-3)  # so large that it counts
    with torch.no_grad():
        made.weight.copy_(torch.randn(WIDTH, generator=generator))
    made = made.double()
    make_norms_exact(made, torch.float64)
    return made


def drawn(*shape: int, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5, WIDTH), (2, 3, 4, WIDTH)])
def test_values_and_gradients_are_those_of_the_module(norm, shape):
    hidden = drawn(*shape).requires_grad_()
    given = drawn(*shape, seed=3)
    inputs = (hidden, norm.weight)
    ours, theirs = rms_normed(norm, hidden), norm(hidden)
    assert type(ours.grad_fn).__name__ != type(theirs.grad_fn).__name__
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)
    pairs = zip(
        torch.autograd.grad(ours, inputs, given),
        torch.autograd.grad(theirs, inputs, given),
        strict=True,
    )
    for ours_of_one, theirs_of_one in pairs:
        torch.testing.assert_close(ours_of_one, theirs_of_one, rtol=1e-12, atol=1e-14)


def test_the_gradient_is_that_of_finite_differences(norm):
    hidden = drawn(3, WIDTH).requires_grad_()
    torch.autograd.gradcheck(lambda one: rms_normed(norm, one), (hidden,))
    # A vector of zeros has a gradient too, since epsilon keeps the scale finite.
    zeros = torch.zeros(1, WIDTH, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda one: rms_normed(norm, one), (zeros,))


def test_values_without_gradients_are_the_same(norm):
    hidden = drawn(5, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(rms_normed(norm, hidden), norm(hidden), rtol=1e-14, atol=1e-15)


def test_hooks_of_a_module_are_called(norm):
    seen = []
    norm.register_forward_hook(lambda *given: seen.append(given))
    rms_normed(norm, drawn(2, WIDTH))
    assert seen


def test_few_bits_go_through_the_module(norm):
    coarse = norm.bfloat16()
    hidden = drawn(2, WIDTH).bfloat16()
    assert torch.equal(rms_normed(coarse, hidden), coarse(hidden))


def test_a_module_that_rounds_in_float64_still_does():
    rounding = Qwen2RMSNorm(WIDTH).double()
    hidden = drawn(4, WIDTH)
    assert torch.equal(rms_normed(rounding, hidden), rounding(hidden))


def test_float32_is_as_near_to_float64_as_the_module():
    coarse = Qwen2RMSNorm(WIDTH, eps=1e-3)
    hidden = drawn(50, WIDTH)
    exactly = hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + 1e-3)
    ours, theirs = (
        (compute(hidden.float()).double() - exactly).abs().max()
        for compute in (lambda one: rms_normed(coarse, one), coarse)
    )
    assert ours < 2 * theirs
