"""The supervised loss against a loop and against torch's cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import ShapeError
from flexrlhf.learning.algorithms.supervised import supervised_loss


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logprobs = -3 * torch.rand(4, 6, dtype=torch.float64, generator=generator)
    mask = torch.tensor(
        [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]],
        dtype=torch.bool,
    )
    return logprobs, mask


def test_equals_the_loop() -> None:
    logprobs, mask = batch()
    total = 0.0
    for row, row_mask in zip(logprobs.tolist(), mask.tolist(), strict=True):
        for logprob, is_kept in zip(row, row_mask, strict=True):
            total -= logprob if is_kept else 0.0
    assert supervised_loss(logprobs, mask, num_tokens=9).item() == pytest.approx(total / 9)


def test_equals_cross_entropy_of_torch() -> None:
    logits = torch.randn(4, 6, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    targets = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(7))
    _, mask = batch()
    logprobs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.masked_fill(~mask, -100).flatten(), ignore_index=-100
    )
    loss = supervised_loss(logprobs, mask, num_tokens=int(mask.sum()))
    torch.testing.assert_close(loss, expected)


def test_hand_worked() -> None:
    # Probabilities 1/2 and 1/8 count, 1/3 does not: (ln 2 + ln 8) / 2 = 2 ln 2.
    logprobs = torch.tensor([[1 / 2, 1 / 3, 1 / 8]]).log()
    loss = supervised_loss(logprobs, torch.tensor([[True, False, True]]), num_tokens=2)
    assert loss.item() == pytest.approx(2 * math.log(2))


def test_gradient() -> None:
    logprobs, mask = batch()
    assert torch.autograd.gradcheck(
        lambda x: supervised_loss(x, mask, num_tokens=9), logprobs.requires_grad_()
    )


@pytest.mark.parametrize("garbage", [-1e6, math.nan])
def test_trap_1_padding_row_order_and_split_change_nothing(garbage: float) -> None:
    logprobs, mask = batch()
    whole_leaf = logprobs.clone().requires_grad_()
    whole = supervised_loss(whole_leaf, mask, num_tokens=9)
    whole.backward()

    leaf = torch.nn.functional.pad(logprobs, (0, 3), value=garbage).requires_grad_()
    mask = torch.nn.functional.pad(mask, (0, 3), value=False)
    total = 0.0
    for rows in ([3, 0], [2], [1]):
        shard = supervised_loss(leaf[rows], mask[rows], num_tokens=9)
        shard.backward()
        total += shard.item()
    assert total == pytest.approx(whole.item(), abs=1e-14)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[:, :6], whole_leaf.grad, rtol=0, atol=1e-15)
    assert torch.all(leaf.grad[:, 6:] == 0)


def test_shapes_must_agree() -> None:
    logprobs, mask = batch()
    with pytest.raises(ShapeError):
        supervised_loss(logprobs, mask[:-1], num_tokens=9)
