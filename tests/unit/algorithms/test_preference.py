"""The pairwise reward loss (Bradley-Terry) against a scalar loop."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import ShapeError
from flexrlhf.learning.algorithms.preference import pairwise_reward_loss


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    chosen, rejected = torch.randn(2, 6, dtype=torch.float64, generator=generator)
    return chosen, rejected


@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_equals_the_loop(margin: float) -> None:
    chosen, rejected = pairs()
    total, correct = 0.0, 0
    for better, worse in zip(chosen.tolist(), rejected.tolist(), strict=True):
        total += math.log1p(math.exp(-(better - worse - margin)))
        correct += better > worse
    result = pairwise_reward_loss(chosen, rejected, num_pairs=6, margin=margin)
    assert result.loss.item() == pytest.approx(total / 6, abs=1e-14)
    assert int(result.num_correct) == correct


def test_hand_worked() -> None:
    # Gap 1: -ln sigmoid(1) = 0.3132617; gap 0: ln 2 = 0.6931472, and a tie is not correct;
    # gap -1: 1.3132617. Mean 2.3196706 / 3. Gradient in chosen is -sigmoid(-gap) / 3.
    chosen = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    result = pairwise_reward_loss(chosen, rejected, num_pairs=3)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(2.3196706 / 3, abs=1e-7)
    assert int(result.num_correct) == 1
    expected = -torch.tensor([0.2689414, 0.5, 0.7310586], dtype=torch.float64) / 3
    torch.testing.assert_close(chosen.grad, expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(rejected.grad, -expected, rtol=0, atol=1e-7)


def test_margin_hand_worked() -> None:
    # Llama 2 (arXiv:2307.09288), eq. 2: -ln sigmoid(chosen - rejected - margin); a gap equal to
    # the margin costs ln 2, and the pair is still ranked correctly.
    result = pairwise_reward_loss(torch.tensor([3.0]), torch.tensor([1.0]), num_pairs=1, margin=2.0)
    assert result.loss.item() == pytest.approx(math.log(2))
    assert int(result.num_correct) == 1


def test_margin_may_differ_per_pair() -> None:
    chosen, rejected = pairs()
    margins = torch.linspace(0, 1, 6, dtype=torch.float64)
    whole = pairwise_reward_loss(chosen, rejected, num_pairs=6, margin=margins)
    one_by_one = [
        pairwise_reward_loss(chosen[[b]], rejected[[b]], num_pairs=6, margin=float(margins[b])).loss
        for b in range(6)
    ]
    torch.testing.assert_close(whole.loss, torch.stack(one_by_one).sum())
    with pytest.raises(ShapeError):
        pairwise_reward_loss(chosen, rejected, num_pairs=6, margin=margins[:2])


@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_gradient(margin: float) -> None:
    chosen, rejected = pairs()
    assert torch.autograd.gradcheck(
        lambda a, b: pairwise_reward_loss(a, b, num_pairs=6, margin=margin).loss,
        (chosen.requires_grad_(), rejected.requires_grad_()),
    )


def test_far_apart_scores_stay_finite() -> None:
    chosen = torch.tensor([1e4, -1e4], requires_grad=True)
    result = pairwise_reward_loss(chosen, torch.zeros(2), num_pairs=2)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(1e4 / 2)
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([0.0, -0.5])


def test_only_the_difference_of_scores_counts() -> None:
    chosen, rejected = pairs()
    plain = pairwise_reward_loss(chosen, rejected, num_pairs=6)
    shifted = pairwise_reward_loss(chosen + 5, rejected + 5, num_pairs=6)
    assert shifted.loss.item() == pytest.approx(plain.loss.item(), abs=1e-13)


def test_trap_1_order_and_split_change_nothing() -> None:
    chosen, rejected = pairs()
    whole_leaf, leaf = chosen.clone().requires_grad_(), chosen.clone().requires_grad_()
    whole = pairwise_reward_loss(whole_leaf, rejected, num_pairs=6)
    whole.loss.backward()
    loss, correct = 0.0, 0
    for rows in ([5, 0, 2], [4], [1, 3]):
        shard = pairwise_reward_loss(leaf[rows], rejected[rows], num_pairs=6)
        shard.loss.backward()
        loss += shard.loss.item()
        correct += int(shard.num_correct)
    assert loss == pytest.approx(whole.loss.item(), abs=1e-14)
    assert correct == int(whole.num_correct)
    torch.testing.assert_close(leaf.grad, whole_leaf.grad, rtol=0, atol=1e-15)


def test_shapes_must_agree() -> None:
    chosen, rejected = pairs()
    with pytest.raises(ShapeError):
        pairwise_reward_loss(chosen, rejected[:1], num_pairs=6)
