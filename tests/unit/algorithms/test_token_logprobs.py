"""Chunked log-probabilities against torch.log_softmax in float64, and the memory they hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs

N, D, V = 10, 4, 7


def inputs(
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    hidden = torch.randn(N, D, dtype=torch.float64, generator=generator)
    weight = torch.randn(V, D, dtype=torch.float64, generator=generator)
    bias = torch.randn(V, dtype=torch.float64, generator=generator)
    targets = torch.randint(V, (N,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), targets, bias.to(dtype)


def whole_softmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


@pytest.mark.parametrize("chunk_tokens", [1, 3, 10, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_log_softmax(chunk_tokens: int, temperature: float, with_bias: bool) -> None:
    hidden, weight, targets, bias = inputs()
    chosen_bias = bias if with_bias else None
    logprobs, entropy = selected_logprobs(
        hidden,
        weight,
        targets,
        head_bias_V=chosen_bias,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=True,
    )
    expected, expected_entropy = whole_softmax(hidden, weight, targets, chosen_bias, temperature)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, expected_entropy)


def test_hand_worked() -> None:
    # Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8. At temperature 1/2 they are squared:
    # 1/30, 4/30, 25/30 (trap 5: the temperature divides the logits, not the log-probabilities).
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64).log()
    target = torch.tensor([1])
    plain, nothing = selected_logprobs(hidden, weight, target)
    sharp, entropy = selected_logprobs(hidden, weight, target, temperature=0.5, with_entropy=True)
    assert nothing is None
    assert entropy is not None
    assert plain.item() == pytest.approx(math.log(2 / 8))
    assert sharp.item() == pytest.approx(math.log(4 / 30))
    by_hand = -sum(p / 30 * math.log(p / 30) for p in (1, 4, 25))
    assert entropy.item() == pytest.approx(by_hand)


def test_equal_logits_have_the_entropy_of_the_uniform_distribution() -> None:
    logprobs, entropy = selected_logprobs(
        torch.zeros(3, 2), torch.ones(16, 2), torch.tensor([0, 7, 15]), with_entropy=True
    )
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx([-math.log(16)] * 3)
    assert entropy.tolist() == pytest.approx([math.log(16)] * 3)


@pytest.mark.parametrize(("chunk_tokens", "temperature"), [(2, 1.0), (64, 0.7)])
def test_gradient(chunk_tokens: int, temperature: float) -> None:
    hidden, weight, targets, bias = inputs()

    def both(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return selected_logprobs(
            h,
            w,
            targets[:5],
            head_bias_V=b,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            with_entropy=True,
        )

    leaves = tuple(tensor.requires_grad_() for tensor in (hidden[:5], weight, bias))
    assert torch.autograd.gradcheck(both, leaves)


def gradients(
    function: Callable[..., Any], leaves: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Gradients of an uneven sum of log-probabilities and entropies."""
    live = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    logprobs, entropy = function(*live)
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    return torch.autograd.grad((weights * logprobs).sum() + 0.3 * entropy.mean(), live)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 10])
def test_gradients_equal_those_of_the_whole_softmax(chunk_tokens: int) -> None:
    hidden, weight, targets, bias = inputs()
    ours = gradients(
        lambda h, w, b: selected_logprobs(
            h,
            w,
            targets,
            head_bias_V=b,
            temperature=0.7,
            chunk_tokens=chunk_tokens,
            with_entropy=True,
        ),
        (hidden, weight, bias),
    )
    expected = gradients(
        lambda h, w, b: whole_softmax(h, w, targets, b, 0.7), (hidden, weight, bias)
    )
    for gradient, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_one_side_may_be_frozen(frozen: str) -> None:
    hidden, weight, targets, _ = inputs()
    live = weight if frozen == "hidden" else hidden
    live.requires_grad_()
    logprobs, _ = selected_logprobs(hidden, weight, targets, chunk_tokens=3)
    expected, _ = whole_softmax(hidden, weight, targets, None, 1.0)
    (gradient,) = torch.autograd.grad(logprobs.sum(), live)
    (other,) = torch.autograd.grad(expected.sum(), live)
    torch.testing.assert_close(gradient, other)


def test_nothing_is_recorded_without_gradients() -> None:
    hidden, weight, targets, _ = inputs()
    with torch.no_grad():
        logprobs, _ = selected_logprobs(hidden.requires_grad_(), weight, targets)
    assert not logprobs.requires_grad


def test_bfloat16_inputs_give_float32_results() -> None:
    hidden, weight, targets, bias = inputs(torch.bfloat16)
    hidden.requires_grad_()
    logprobs, entropy = selected_logprobs(
        hidden, weight, targets, head_bias_V=bias, with_entropy=True, chunk_tokens=3
    )
    assert entropy is not None
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected, expected_entropy = whole_softmax(hidden, weight, targets, bias, 1.0)
    # A logit of size 8 has bfloat16 steps of 1/32: room for a product in bfloat16, but none for a
    # softmax in it (test below).
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=0, atol=0.05)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_bfloat16_softmax_is_summed_in_float32() -> None:
    # 1000 equal logits: ln 1000 = 6.9078; a bfloat16 sum or logarithm would be off by up to 0.03.
    hidden, weight = torch.zeros(2, 3).bfloat16(), torch.zeros(1000, 3).bfloat16()
    logprobs, entropy = selected_logprobs(hidden, weight, torch.tensor([0, 999]), with_entropy=True)
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx([-math.log(1000)] * 2, abs=1e-5)
    assert entropy.tolist() == pytest.approx([math.log(1000)] * 2, abs=1e-5)


def test_float32_stays_accurate_for_large_logits() -> None:
    hidden, weight, targets, _ = inputs(torch.float32)
    logprobs, entropy = selected_logprobs(300 * hidden, weight, targets, with_entropy=True)
    expected, expected_entropy = whole_softmax(300 * hidden, weight, targets, None, 1.0)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-4, atol=1e-4)


def test_row_order_and_split_change_nothing() -> None:
    hidden, weight, targets, _ = inputs()
    whole, _ = selected_logprobs(hidden, weight, targets, chunk_tokens=4)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(12))
    shuffled, _ = selected_logprobs(hidden[order], weight, targets[order], chunk_tokens=4)
    torch.testing.assert_close(shuffled, whole[order])
    parts = [
        selected_logprobs(hidden[part], weight, targets[part], chunk_tokens=4)[0]
        for part in (slice(0, 3), slice(3, 10))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_no_tokens_is_an_empty_result() -> None:
    hidden, weight, targets, _ = inputs()
    logprobs, entropy = selected_logprobs(hidden[:0], weight, targets[:0], with_entropy=True)
    assert entropy is not None
    assert logprobs.shape == entropy.shape == (0,)


class MemoryWatch(TorchDispatchMode):
    """Records the largest tensor made, and the most storage alive at once, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.most_alive = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                elements = storage.nbytes() // leaf.element_size()
                self.largest = max(self.largest, leaf.numel())
                self._alive[storage._cdata] = (StorageWeakRef(storage), elements)
        self._alive = {key: kept for key, kept in self._alive.items() if not kept[0].expired()}
        self.most_alive = max(self.most_alive, sum(size for _, size in self._alive.values()))
        return result


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_full_matrix_of_logits_is_never_alive(with_entropy: bool, temperature: float) -> None:
    num_tokens, width, vocabulary, chunk = 512, 2, 600, 8
    generator = torch.Generator().manual_seed(13)
    hidden = torch.randn(num_tokens, width, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    targets = torch.randint(vocabulary, (num_tokens,), generator=generator)
    with MemoryWatch() as watch:
        logprobs, entropy = selected_logprobs(
            hidden,
            weight,
            targets,
            temperature=temperature,
            chunk_tokens=chunk,
            with_entropy=with_entropy,
        )
        total = logprobs.sum() if entropy is None else logprobs.sum() + entropy.sum()
        total.backward()
    assert watch.largest > 0
    # One chunk's logits are the largest tensor in either pass, and a few such are alive at once
    # (logits, probabilities, their gradients), not one per chunk: 64 chunks make the whole matrix.
    assert watch.largest == chunk * vocabulary
    assert watch.most_alive < 16 * chunk * vocabulary < num_tokens * vocabulary / 3


def test_memory_watch_sees_a_full_matrix() -> None:
    hidden, weight, targets, _ = inputs()
    with MemoryWatch() as watch:
        whole_softmax(hidden, weight, targets, None, 0.7)
    assert watch.largest == N * V
    assert watch.most_alive >= 2 * N * V


def test_shapes_must_agree() -> None:
    hidden, weight, targets, bias = inputs()
    with pytest.raises(ShapeError):
        selected_logprobs(hidden, weight[:, 1:], targets)
    with pytest.raises(ShapeError):
        selected_logprobs(hidden, weight, targets[1:])
    with pytest.raises(ShapeError):
        selected_logprobs(hidden, weight, targets, head_bias_V=bias[1:])


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"temperature": -1.0}, {"chunk_tokens": 0}]
)
def test_ranges_are_checked(wrong: dict[str, Any]) -> None:
    hidden, weight, targets, _ = inputs()
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        selected_logprobs(hidden, weight, targets, **wrong)
