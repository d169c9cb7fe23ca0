"""Loss aggregation: global counts come in as numbers, so that shards add up to the whole."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.aggregation import aggregate

MODES = ("token_mean", "sequence_mean", "sequence_sum", "token_sum_norm")
SPLITS = ([[0, 1, 2, 3, 4]], [[0], [1], [2], [3], [4]], [[4, 1], [0, 3, 2]], [[2, 3, 1, 0], [4]])


def ragged_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Five rows of very unequal length, one with a hole and one with no trainable token."""
    values = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor(
        [
            [0, 1, 1, 1, 1, 1, 1],
            [0, 0, 1, 0, 0, 0, 0],
            [0, 1, 1, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 1, 1, 0, 0],
        ],
        dtype=torch.bool,
    )
    return values, mask


def counts(mask: torch.Tensor) -> dict[str, int]:
    return {"num_tokens": int(mask.sum()), "num_sequences": len(mask), "max_tokens": 9}


def loop_aggregate(
    values: torch.Tensor,
    mask: torch.Tensor,
    mode: str,
    *,
    num_tokens: int,
    num_sequences: int,
    max_tokens: int,
) -> float:
    total = 0.0
    for row, row_mask in zip(values.tolist(), mask.tolist(), strict=True):
        kept = [value for value, is_kept in zip(row, row_mask, strict=True) if is_kept]
        if mode == "sequence_mean":
            total += sum(kept) / len(kept) if kept else 0.0
        else:
            total += sum(kept)
    divisors = {
        "token_mean": num_tokens,
        "sequence_mean": num_sequences,
        "sequence_sum": num_sequences,
        "token_sum_norm": num_sequences * max_tokens,
    }
    return total / divisors[mode]


@pytest.mark.parametrize("mode", MODES)
def test_equals_the_loop(mode: str) -> None:
    values, mask = ragged_batch()
    expected = loop_aggregate(values, mask, mode, **counts(mask))
    assert aggregate(values, mask, mode, **counts(mask)).item() == pytest.approx(
        expected, abs=1e-14
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # values 1 2 3 | 10 - -: sums 6 and 10, means 2 and 10; 4 tokens, 2 sequences, 5 allowed.
        ("token_mean", 16 / 4),
        ("sequence_mean", (2 + 10) / 2),
        ("sequence_sum", (6 + 10) / 2),
        ("token_sum_norm", 16 / (2 * 5)),
    ],
)
def test_hand_worked(mode: str, expected: float) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 77.0, 77.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss = aggregate(values, mask, mode, num_tokens=4, num_sequences=2, max_tokens=5)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradient(mode: str) -> None:
    values, mask = ragged_batch()
    assert torch.autograd.gradcheck(
        lambda x: aggregate(x, mask, mode, **counts(mask)), values.requires_grad_()
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", SPLITS)
def test_trap_1_shards_with_global_counts_add_up_in_loss_and_gradient(
    mode: str, split: list[list[int]]
) -> None:
    values, mask = ragged_batch()
    whole_leaf = values.clone().requires_grad_()
    whole = aggregate(whole_leaf, mask, mode, **counts(mask))
    whole.backward()

    shard_leaf = values.clone().requires_grad_()
    total = 0.0
    for rows in split:
        shard = aggregate(shard_leaf[rows], mask[rows], mode, **counts(mask))
        shard.backward()
        total += shard.item()
    assert total == pytest.approx(whole.item(), abs=1e-14)
    torch.testing.assert_close(shard_leaf.grad, whole_leaf.grad, rtol=0, atol=1e-15)


def test_trap_1_mean_of_micro_batch_means_is_another_number() -> None:
    # Rows of 1 and 3 tokens: the token mean is (10 + 6) / 4 = 4; the mean of two local means is
    # (10 / 1 + 6 / 3) / 2 = 6. Only the global count makes the split invisible.
    values = torch.tensor([[10.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, False, False], [True, True, True]])

    def token_mean(row: int, num_tokens: int) -> float:
        shard = slice(row, row + 1)
        return aggregate(
            values[shard],
            mask[shard],
            "token_mean",
            num_tokens=num_tokens,
            num_sequences=2,
            max_tokens=3,
        ).item()

    assert token_mean(0, 4) + token_mean(1, 4) == pytest.approx(4.0)
    assert (token_mean(0, 1) + token_mean(1, 3)) / 2 == pytest.approx(6.0)


@pytest.mark.parametrize("mode", ["token_mean", "sequence_sum", "token_sum_norm"])
def test_trap_1_column_shards_add_up_where_no_sequence_length_is_needed(mode: str) -> None:
    values, mask = ragged_batch()
    whole = aggregate(values, mask, mode, **counts(mask)).item()
    parts = [
        aggregate(values[:, part], mask[:, part], mode, **counts(mask)).item()
        for part in (slice(0, 3), slice(3, 7))
    ]
    assert sum(parts) == pytest.approx(whole, abs=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_row_order_change_nothing(mode: str) -> None:
    values, mask = ragged_batch()
    expected = aggregate(values, mask, mode, **counts(mask)).item()
    order = torch.tensor([3, 0, 4, 2, 1])
    padded = torch.nn.functional.pad(values[order], (0, 4), value=1e6)
    padded_mask = torch.nn.functional.pad(mask[order], (0, 4), value=False)
    padded.requires_grad_()
    loss = aggregate(padded, padded_mask, mode, **counts(mask))
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-14)
    assert padded.grad is not None
    assert torch.all(padded.grad[~padded_mask] == 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("garbage", [math.inf, math.nan])
def test_padding_that_is_not_finite_does_not_leak(mode: str, garbage: float) -> None:
    values, mask = ragged_batch()
    expected = aggregate(values, mask, mode, **counts(mask)).item()
    poisoned = values.masked_fill(~mask, garbage)
    assert aggregate(poisoned, mask, mode, **counts(mask)).item() == pytest.approx(expected)


def test_shard_without_trainable_tokens_adds_zero() -> None:
    values, mask = torch.randn(2, 3).requires_grad_(), torch.zeros(2, 3, dtype=torch.bool)
    for mode in MODES:
        loss = aggregate(values, mask, mode, num_tokens=10, num_sequences=4, max_tokens=3)
        (gradient,) = torch.autograd.grad(loss, values)
        assert loss.item() == 0.0
        assert torch.all(gradient == 0)


def test_bad_requests_are_refused() -> None:
    values, mask = ragged_batch()
    with pytest.raises(ConfigError, match="token_men"):
        aggregate(values, mask, "token_men", **counts(mask))
    with pytest.raises(ShapeError):
        aggregate(values, mask[:, :-1], "token_mean", **counts(mask))
    with pytest.raises(ShapeError, match=r"torch\.int64"):
        aggregate(values, mask.long(), "token_mean", **counts(mask))


@pytest.mark.parametrize(
    ("mode", "count"),
    [
        ("token_mean", "num_tokens"),
        ("sequence_mean", "num_sequences"),
        ("sequence_sum", "num_sequences"),
        ("token_sum_norm", "num_sequences"),
        ("token_sum_norm", "max_tokens"),
    ],
)
def test_counts_of_nothing_are_refused(mode: str, count: str) -> None:
    values, mask = ragged_batch()
    with pytest.raises(ShapeError, match=f"{count} = 0"):
        aggregate(values, mask, mode, **{**counts(mask), count: 0})
