"""The clipped value loss against a scalar loop."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import ShapeError
from flexrlhf.learning.algorithms.value import clipped_value_loss


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    old, moves, returns = torch.randn(3, 4, 6, dtype=torch.float64, generator=generator)
    mask = torch.tensor(
        [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]],
        dtype=torch.bool,
    )
    return old + 0.5 * moves, old, returns, mask


def loop_value_loss(tensors: tuple[torch.Tensor, ...], clip: float) -> tuple[float, int]:
    values, old_values, returns, mask = (tensor.flatten().tolist() for tensor in tensors)
    total, clipped, num_tokens = 0.0, 0, 0
    for value, old, target, is_kept in zip(values, old_values, returns, mask, strict=True):
        if not is_kept:
            continue
        near = min(max(value, old - clip), old + clip)
        free_error, near_error = (value - target) ** 2, (near - target) ** 2
        total += 0.5 * max(free_error, near_error)
        clipped += near_error > free_error
        num_tokens += 1
    return total / num_tokens, clipped


@pytest.mark.parametrize("clip", [0.05, 0.2, 10.0])
def test_equals_the_loop(clip: float) -> None:
    tensors = batch()
    result = clipped_value_loss(*tensors, clip=clip, num_tokens=int(tensors[3].sum()))
    expected_loss, expected_clipped = loop_value_loss(tensors, clip)
    assert result.loss.item() == pytest.approx(expected_loss, abs=1e-14)
    assert int(result.clipped_tokens) == expected_clipped
    assert (expected_clipped > 0) == (clip < 1)


def test_hand_worked() -> None:
    # old = 0, clip = 0.2, return = 1:
    #   v = 0.5 -> clip 0.2: max(0.25, 0.64) = 0.64, clipped, no gradient
    #   v = 0.1 -> inside:   0.81, gradient (0.1 - 1) = -0.9
    #   v = -0.5 -> clip -0.2: max(2.25, 1.44) = 2.25, the free one, gradient -1.5
    # loss = 0.5 * (0.64 + 0.81 + 2.25) / 3 = 3.7 / 6
    values = torch.tensor([[0.5, 0.1, -0.5, 9.0]], dtype=torch.float64, requires_grad=True)
    result = clipped_value_loss(
        values,
        torch.zeros(1, 4, dtype=torch.float64),
        torch.ones(1, 4, dtype=torch.float64),
        torch.tensor([[True, True, True, False]]),
        clip=0.2,
        num_tokens=3,
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(3.7 / 6)
    assert int(result.clipped_tokens) == 1
    expected = torch.tensor([[0, -0.9, -1.5, 0]], dtype=torch.float64) / 3
    torch.testing.assert_close(values.grad, expected)


@pytest.mark.parametrize("clip", [0.05, 0.2, 10.0])
def test_gradient(clip: float) -> None:
    values, old, returns, mask = batch()
    assert torch.autograd.gradcheck(
        lambda x: clipped_value_loss(x, old, returns, mask, clip=clip, num_tokens=11).loss,
        values.requires_grad_(),
    )


def test_wide_clip_is_half_the_mean_squared_error() -> None:
    values, old, returns, mask = batch()
    result = clipped_value_loss(values, old, returns, mask, clip=1e6, num_tokens=int(mask.sum()))
    expected = 0.5 * torch.nn.functional.mse_loss(values[mask], returns[mask])
    assert result.loss.item() == pytest.approx(expected.item(), abs=1e-14)
    assert int(result.clipped_tokens) == 0


def test_unmoved_critic_has_the_whole_gradient() -> None:
    # V = V_old: both branches tie, and the gradient is (V - R) / num_tokens, not half of it.
    _, old, returns, mask = batch()
    values = old.clone().requires_grad_()
    old.requires_grad_()
    returns.requires_grad_()
    result = clipped_value_loss(values, old, returns, mask, clip=0.2, num_tokens=int(mask.sum()))
    result.loss.backward()
    expected = ((old - returns) * mask).detach() / int(mask.sum())
    torch.testing.assert_close(values.grad, expected)
    assert int(result.clipped_tokens) == 0
    assert old.grad is None
    assert returns.grad is None


@pytest.mark.parametrize("garbage", [1e6, math.nan])
def test_trap_1_padding_row_order_and_split_change_nothing(garbage: float) -> None:
    values, old, returns, mask = batch()
    num_tokens = int(mask.sum())
    whole_leaf = values.clone().requires_grad_()
    whole = clipped_value_loss(whole_leaf, old, returns, mask, clip=0.2, num_tokens=num_tokens)
    whole.loss.backward()

    pad = torch.nn.functional.pad
    leaf = pad(values, (0, 3), value=garbage).requires_grad_()
    old, returns = pad(old, (0, 3), value=-1e6), pad(returns, (0, 3), value=-garbage)
    mask = pad(mask, (0, 3), value=False)
    loss, clipped = 0.0, 0
    for rows in ([3, 0], [2], [1]):
        shard = clipped_value_loss(
            leaf[rows], old[rows], returns[rows], mask[rows], clip=0.2, num_tokens=num_tokens
        )
        shard.loss.backward()
        loss += shard.loss.item()
        clipped += int(shard.clipped_tokens)
    assert loss == pytest.approx(whole.loss.item(), abs=1e-14)
    assert clipped == int(whole.clipped_tokens)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[:, :6], whole_leaf.grad, rtol=0, atol=1e-15)
    assert torch.all(leaf.grad[:, 6:] == 0)


def test_shapes_must_agree() -> None:
    values, old, returns, mask = batch()
    with pytest.raises(ShapeError):
        clipped_value_loss(values, old, returns[:, :1], mask, clip=0.2, num_tokens=11)
