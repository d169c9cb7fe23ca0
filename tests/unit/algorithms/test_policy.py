"""The clipped surrogate, asymmetric and dual, against a scalar loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.policy import (
    PolicyLoss,
    clipped_policy_loss,
    entropy_loss,
)

MODES = ("token_mean", "sequence_mean", "sequence_sum", "token_sum_norm")
CLIPS: tuple[dict[str, Any], ...] = (
    {"clip_low": 0.2, "clip_high": 0.2},
    {"clip_low": 0.2, "clip_high": 0.28},
    {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.5},
)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    old = -3 * torch.rand(4, 6, dtype=torch.float64, generator=generator)
    logprobs = old + 0.5 * torch.randn(4, 6, dtype=torch.float64, generator=generator)
    advantages = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    mask = torch.tensor(
        [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]],
        dtype=torch.bool,
    )
    return logprobs, old, advantages, mask


def counts(mask: torch.Tensor) -> dict[str, int]:
    return {"num_tokens": int(mask.sum()), "num_sequences": len(mask), "max_tokens": 8}


def loop_policy_loss(
    tensors: tuple[torch.Tensor, ...],
    mode: str,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[float, int, float, float]:
    """Returns loss, clipped tokens, sum of k3 of KL(old || new), sum of ratios."""
    logprobs, old, advantages, mask = (tensor.tolist() for tensor in tensors)
    total, clipped, kl, ratios, num_tokens = 0.0, 0, 0.0, 0.0, 0
    for row in range(len(mask)):
        row_losses = []
        for t in range(len(mask[row])):
            if not mask[row][t]:
                continue
            ratio = math.exp(logprobs[row][t] - old[row][t])
            advantage = advantages[row][t]
            inside = min(max(ratio, 1 - clip_low), 1 + clip_high)
            gain = min(ratio * advantage, inside * advantage)
            is_clipped = gain < ratio * advantage
            if dual_clip is not None and advantage < 0 and gain < dual_clip * advantage:
                gain = dual_clip * advantage
                is_clipped = True
            row_losses.append(-gain)
            clipped += is_clipped
            kl += ratio - 1 - math.log(ratio)
            ratios += ratio
            num_tokens += 1
        total += sum(row_losses) / (len(row_losses) if mode == "sequence_mean" else 1)
    divisors = {"token_mean": num_tokens, "token_sum_norm": len(mask) * 8}
    return total / divisors.get(mode, len(mask)), clipped, kl, ratios


def numbers(loss: PolicyLoss) -> list[float]:
    return [
        loss.loss.item(),
        float(loss.clipped_tokens),
        float(loss.approx_kl_sum),
        float(loss.ratio_sum),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clips", CLIPS)
def test_equals_the_loop(mode: str, clips: dict[str, Any]) -> None:
    tensors = batch()
    result = clipped_policy_loss(*tensors, **clips, aggregation=mode, **counts(tensors[3]))
    expected = loop_policy_loss(tensors, mode, **clips)
    assert expected[1] > 0
    assert numbers(result) == pytest.approx(list(expected), abs=1e-12)


def hand_worked() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    ratios = torch.tensor([[1.5, 0.5, 1.0], [0.5, 1.5, 4.0]], dtype=torch.float64)
    old = torch.full((2, 3), -2.0, dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, 2.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
    return (old + ratios.log()).requires_grad_(), old, advantages, torch.ones(2, 3).bool()


HAND_COUNTS = {"num_tokens": 6, "num_sequences": 2, "max_tokens": 3}


def test_asymmetric_clip_hand_worked() -> None:
    # low 0.2, high 0.28: ratios may move in [0.8, 1.28].
    #   A = 1: min(1.5, 1.28) = 1.28 clipped | min(0.5, 0.8) = 0.5   | A = 2: 2
    #   A = -1: min(-0.5, -0.8) = -0.8 clipped | min(-1.5, -1.28) = -1.5 | min(-4, -1.28) = -4
    # sum -2.52, loss 2.52 / 6 = 0.42. Gradient in log p is -r A / 6 where the ratio itself was
    # taken and 0 where it was clipped.
    logprobs, old, advantages, mask = hand_worked()
    result = clipped_policy_loss(
        logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.28, **HAND_COUNTS
    )
    # ratios add up to 9; sum of r - 1 - ln r is 3 - ln(1.5 * 0.5 * 0.5 * 1.5 * 4) = 3 - ln 2.25.
    assert numbers(result) == pytest.approx([0.42, 2, 3 - math.log(2.25), 9.0])
    result.loss.backward()
    expected = torch.tensor([[0, -0.5, -2.0], [0, 1.5, 4.0]], dtype=torch.float64) / 6
    torch.testing.assert_close(logprobs.grad, expected)


def test_dual_clip_hand_worked() -> None:
    # As above, but the last token's -4 is raised to dual_clip * A = -3: sum -1.52, no gradient.
    logprobs, old, advantages, mask = hand_worked()
    result = clipped_policy_loss(
        logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.28, dual_clip=3.0, **HAND_COUNTS
    )
    assert result.loss.item() == pytest.approx(1.52 / 6)
    assert int(result.clipped_tokens) == 3
    result.loss.backward()
    expected = torch.tensor([[0, -0.5, -2.0], [0, 1.5, 0]], dtype=torch.float64) / 6
    torch.testing.assert_close(logprobs.grad, expected)


def test_dual_clip_leaves_positive_advantages_alone() -> None:
    logprobs, old, _, mask = hand_worked()
    common = {"clip_low": 0.2, "clip_high": 0.28, **HAND_COUNTS}
    advantages = torch.ones(2, 3, dtype=torch.float64)
    plain = clipped_policy_loss(logprobs, old, advantages, mask, **common)
    dual = clipped_policy_loss(logprobs, old, advantages, mask, dual_clip=3.0, **common)
    assert numbers(plain) == numbers(dual)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clips", CLIPS)
def test_gradient(mode: str, clips: dict[str, Any]) -> None:
    logprobs, old, advantages, mask = batch()
    assert torch.autograd.gradcheck(
        lambda x: (
            clipped_policy_loss(
                x, old, advantages, mask, **clips, aggregation=mode, **counts(mask)
            ).loss
        ),
        logprobs.requires_grad_(),
    )


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    # r = 1 everywhere: d loss / d log p = -A / num_tokens, the score-function estimator; the
    # loss itself is minus the mean advantage and nothing counts as clipped.
    _, old, advantages, mask = batch()
    logprobs = old.clone().requires_grad_()
    result = clipped_policy_loss(
        logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.2, **counts(mask)
    )
    result.loss.backward()
    num_tokens = int(mask.sum())
    torch.testing.assert_close(logprobs.grad, -(advantages * mask) / num_tokens)
    assert numbers(result) == pytest.approx(
        [-advantages[mask].mean().item(), 0, 0, num_tokens], abs=1e-12
    )


def test_zero_advantages_are_never_clipped() -> None:
    logprobs, old, advantages, mask = batch()
    result = clipped_policy_loss(
        logprobs,
        old,
        torch.zeros_like(advantages),
        mask,
        clip_low=0.01,
        clip_high=0.01,
        dual_clip=2.0,
        **counts(mask),
    )
    assert result.loss.item() == 0.0
    assert int(result.clipped_tokens) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("garbage", [-1e4, math.nan])
def test_trap_1_padding_row_order_and_split_change_nothing(
    mode: str, clips: dict[str, Any], garbage: float
) -> None:
    logprobs, old, advantages, mask = batch()
    common = {**clips, "aggregation": mode, **counts(mask)}
    whole_leaf = logprobs.clone().requires_grad_()
    whole = clipped_policy_loss(whole_leaf, old, advantages, mask, **common)
    whole.loss.backward()

    pad = torch.nn.functional.pad
    leaf = pad(logprobs, (0, 3), value=garbage).requires_grad_()
    old, advantages = pad(old, (0, 3), value=1e4), pad(advantages, (0, 3), value=100 * garbage)
    mask = pad(mask, (0, 3), value=False)
    total = torch.zeros(4, dtype=torch.float64)
    for rows in ([3, 0], [2], [1]):
        shard = clipped_policy_loss(leaf[rows], old[rows], advantages[rows], mask[rows], **common)
        shard.loss.backward()
        total += torch.tensor(numbers(shard), dtype=torch.float64)
    assert total.tolist() == pytest.approx(numbers(whole), abs=1e-12)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[:, :6], whole_leaf.grad, rtol=0, atol=1e-14)
    assert torch.all(leaf.grad[:, 6:] == 0)


@pytest.mark.parametrize("gap", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_trap_3_hopeless_ratio_stays_finite(gap: float, advantage: float) -> None:
    logprobs = torch.tensor([[0.0, gap]], requires_grad=True)
    result = clipped_policy_loss(
        logprobs,
        torch.zeros(1, 2),
        torch.full((1, 2), advantage),
        torch.tensor([[False, True]]),
        clip_low=0.2,
        clip_high=0.2,
        num_tokens=1,
        num_sequences=1,
        max_tokens=1,
    )
    result.loss.backward()
    assert all(math.isfinite(number) for number in numbers(result))
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_statistics_hold_no_graph() -> None:
    logprobs, old, advantages, mask = batch()
    result = clipped_policy_loss(
        logprobs.requires_grad_(),
        old,
        advantages,
        mask,
        clip_low=0.2,
        clip_high=0.2,
        **counts(mask),
    )
    assert result.loss.requires_grad
    for statistic in (result.clipped_tokens, result.approx_kl_sum, result.ratio_sum):
        assert not torch.as_tensor(statistic).requires_grad


def test_old_logprobs_and_advantages_are_constants() -> None:
    logprobs, old, advantages, mask = batch()
    for constant in (old, advantages):
        constant.requires_grad_()
    result = clipped_policy_loss(
        logprobs.requires_grad_(),
        old,
        advantages,
        mask,
        clip_low=0.2,
        clip_high=0.2,
        **counts(mask),
    )
    result.loss.backward()
    assert logprobs.grad is not None
    assert old.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize("dual_clip", [1.0, 0.5, -3.0, math.nan])
def test_dual_clip_that_would_cut_ratios_below_one_is_refused(dual_clip: float) -> None:
    logprobs, old, advantages, mask = batch()
    with pytest.raises(ConfigError, match="dual clip"):
        clipped_policy_loss(
            logprobs,
            old,
            advantages,
            mask,
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=dual_clip,
            **counts(mask),
        )


def test_bad_requests_are_refused() -> None:
    logprobs, old, advantages, mask = batch()
    with pytest.raises(ShapeError):
        clipped_policy_loss(
            logprobs, old[:, 1:], advantages, mask, clip_low=0.2, clip_high=0.2, **counts(mask)
        )
    with pytest.raises(ConfigError, match="mean_of_means"):
        clipped_policy_loss(
            logprobs,
            old,
            advantages,
            mask,
            clip_low=0.2,
            clip_high=0.2,
            aggregation="mean_of_means",
            **counts(mask),
        )


# --------------------------------------------------------------------------------- entropy_loss


def test_entropy_loss_hand_worked() -> None:
    # Entropies 0.5 and 1.5 count, 9 does not: minus their mean, so that less loss is more entropy.
    entropy = torch.tensor([[0.5, 9.0, 1.5]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    loss = entropy_loss(entropy, mask, num_tokens=2, num_sequences=1, max_tokens=3)
    loss.backward()
    assert loss.item() == pytest.approx(-1.0)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == [[-0.5, 0.0, -0.5]]


@pytest.mark.parametrize("mode", MODES)
def test_entropy_loss_equals_the_loop_and_adds_up(mode: str) -> None:
    entropy, _, _, mask = batch()
    common = {"aggregation": mode, **counts(mask)}
    total = 0.0
    for row, row_mask in zip(entropy.tolist(), mask.tolist(), strict=True):
        kept = [number for number, is_kept in zip(row, row_mask, strict=True) if is_kept]
        total -= sum(kept) / (len(kept) if mode == "sequence_mean" else 1)
    divisors = {"token_mean": int(mask.sum()), "token_sum_norm": len(mask) * 8}
    expected = total / divisors.get(mode, len(mask))
    assert entropy_loss(entropy, mask, **common).item() == pytest.approx(expected, abs=1e-14)
    shards = [entropy_loss(entropy[rows], mask[rows], **common) for rows in ([2, 0], [1, 3])]
    assert sum(shards).item() == pytest.approx(expected, abs=1e-14)
    assert torch.autograd.gradcheck(
        lambda x: entropy_loss(x, mask, **common), entropy.requires_grad_()
    )
