"""Token rewards, GAE, whitening and group advantages against scalar loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.advantages import (
    Moments,
    gae,
    group_advantages,
    masked_moments,
    token_rewards,
    whiten,
)

pad = torch.nn.functional.pad

# Rows: one turn; one token; three turns with masked tokens (tool output) between and behind.
MASK = torch.tensor(
    [[0, 0, 1, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 1, 1]],
    dtype=torch.bool,
)


def random_rows(seed: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *MASK.shape, dtype=torch.float64, generator=generator)


def kept_positions(row: int) -> list[int]:
    return [t for t in range(MASK.shape[1]) if MASK[row, t]]


# -------------------------------------------------------------------------------- token_rewards

SCORES = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def scalar_kl(gap: float, estimator: str) -> float:
    return {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[estimator]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_token_rewards_equal_the_loop(estimator: str) -> None:
    logprobs, reference = random_rows(1)
    expected = torch.zeros_like(logprobs)
    for row in range(len(MASK)):
        for t in kept_positions(row):
            gap = (logprobs[row, t] - reference[row, t]).item()
            expected[row, t] = -0.1 * scalar_kl(gap, estimator)
        expected[row, kept_positions(row)[-1]] += SCORES[row]
    rewards = token_rewards(SCORES, logprobs, reference, MASK, kl_coef=0.1, estimator=estimator)
    torch.testing.assert_close(rewards, expected, rtol=0, atol=1e-14)


def test_token_rewards_hand_worked() -> None:
    # k1 with coefficient 0.5: gaps 0.2 and -0.4 cost 0.1 and earn 0.2; score 3 on the last one.
    rewards = token_rewards(
        torch.tensor([3.0]),
        torch.tensor([[0.0, -1.0, -1.0, -7.0]]),
        torch.tensor([[0.0, -1.2, -0.6, -9.0]]),
        torch.tensor([[False, True, True, False]]),
        kl_coef=0.5,
    )
    torch.testing.assert_close(rewards, torch.tensor([[0.0, -0.1, 3.2, 0.0]]))


def test_trap_6_score_lands_on_the_last_trainable_token_alone() -> None:
    # Not on the token after it, not on the last column, not on the last token before a hole.
    rewards = token_rewards(SCORES, random_rows(1)[0], None, MASK, kl_coef=0.0)
    expected = torch.zeros(4, 7, dtype=torch.float64)
    expected[[0, 1, 2, 3], [5, 1, 4, 6]] = SCORES
    torch.testing.assert_close(rewards, expected, rtol=0, atol=0)


def test_penalty_without_a_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="reference"):
        token_rewards(SCORES, random_rows(1)[0], None, MASK, kl_coef=0.1)


def test_score_without_a_token_to_bear_it_is_refused() -> None:
    logprobs, reference = random_rows(1)
    mask = MASK.clone()
    mask[1] = False
    with pytest.raises(ShapeError):
        token_rewards(SCORES, logprobs, reference, mask, kl_coef=0.1)


def test_token_rewards_ignore_padding_and_row_order() -> None:
    logprobs, reference = random_rows(1)
    plain = token_rewards(SCORES, logprobs, reference, MASK, kl_coef=0.1)
    order = torch.tensor([2, 0, 3, 1])
    padded = token_rewards(
        SCORES[order],
        pad(logprobs[order], (0, 3), value=math.nan),
        pad(reference[order], (0, 3), value=1e4),
        pad(MASK[order], (0, 3), value=False),
        kl_coef=0.1,
    )
    torch.testing.assert_close(padded, pad(plain[order], (0, 3)), rtol=0, atol=1e-15)


# ------------------------------------------------------------------------------------------ gae


def loop_gae(
    rewards: list[float], values: list[float], gamma: float, gae_lambda: float
) -> list[float]:
    """Schulman et al. 2016, eq. 16, as the double sum it is written as."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * gae_lambda) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


@pytest.mark.parametrize(
    ("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)]
)
def test_gae_equals_the_loop(gamma: float, gae_lambda: float) -> None:
    rewards, values = random_rows(2)
    advantages, returns = gae(rewards, values, MASK, gamma=gamma, gae_lambda=gae_lambda)
    expected = torch.zeros_like(rewards)
    for row in range(len(MASK)):
        kept = kept_positions(row)
        expected[row, kept] = torch.tensor(
            loop_gae(rewards[row, kept].tolist(), values[row, kept].tolist(), gamma, gae_lambda),
            dtype=torch.float64,
        )
    torch.testing.assert_close(advantages, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(returns[MASK], (expected + values)[MASK], rtol=0, atol=1e-13)


def test_gae_hand_worked() -> None:
    # gamma = lambda = 1/2, V = 1 2 3, r = 0 0 4.
    #   delta = 0 + 2/2 - 1 = 0 | 0 + 3/2 - 2 = -0.5 | 4 - 3 = 1        (gamma * lambda = 1/4)
    #   A = 0 - 0.25/4 = -0.0625 | -0.5 + 1/4 = -0.25 | 1;  returns = A + V
    advantages, returns = gae(
        torch.tensor([[0.0, 0.0, 0.0, 4.0]]),
        torch.tensor([[9.0, 1.0, 2.0, 3.0]]),
        torch.tensor([[False, True, True, True]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.0, -0.0625, -0.25, 1.0]]))
    torch.testing.assert_close(returns[:, 1:], torch.tensor([[0.9375, 1.75, 4.0]]))


def test_gae_derivative_in_rewards_decays_per_trainable_token() -> None:
    # d A_t / d r_u = (gamma * lambda) ** (trainable tokens from t to u), 0 for u < t, measured by
    # central differences on the row with holes.
    rewards, values = random_rows(3)
    kept, step = kept_positions(3), 1e-4
    for position_u, u in enumerate(kept):
        bump = torch.zeros_like(rewards)
        bump[3, u] = step
        up, _ = gae(rewards + bump, values, MASK, gamma=0.9, gae_lambda=0.8)
        down, _ = gae(rewards - bump, values, MASK, gamma=0.9, gae_lambda=0.8)
        slope = ((up - down) / (2 * step))[3]
        for position_t, t in enumerate(kept):
            expected = 0.72 ** (position_u - position_t) if position_t <= position_u else 0.0
            assert slope[t].item() == pytest.approx(expected, abs=1e-9)


def test_trap_6_multi_turn_equals_the_same_tokens_without_holes() -> None:
    rewards, values = random_rows(4)
    rewards[~MASK], values[~MASK] = 1e6, -1e6
    advantages, returns = gae(rewards, values, MASK, gamma=0.9, gae_lambda=0.8)
    for row in range(len(MASK)):
        kept = kept_positions(row)
        dense_advantages, dense_returns = gae(
            rewards[row, kept][None],
            values[row, kept][None],
            torch.ones(1, len(kept), dtype=torch.bool),
            gamma=0.9,
            gae_lambda=0.8,
        )
        torch.testing.assert_close(advantages[row, kept], dense_advantages[0])
        torch.testing.assert_close(returns[row, kept], dense_returns[0])


def test_trap_6_terminal_reward_reaches_the_first_turn() -> None:
    # gamma = lambda = 1 and no values: every trainable token gets the score, however many tool
    # tokens lie between; with gamma = 0.5 the hole of five counts as no step at all.
    mask = torch.tensor([[False, True, False, False, False, False, False, True]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    zeros = torch.zeros_like(rewards)
    whole, _ = gae(rewards, zeros, mask, gamma=1.0, gae_lambda=1.0)
    halved, _ = gae(rewards, zeros, mask, gamma=0.5, gae_lambda=1.0)
    assert whole[mask].tolist() == [1.0, 1.0]
    assert halved[mask].tolist() == [0.5, 1.0]


def test_trap_7_padding_does_not_leak_into_advantages_or_returns() -> None:
    rewards, values = random_rows(5)
    plain_advantages, plain_returns = gae(rewards, values, MASK, gamma=0.9, gae_lambda=0.8)
    order = torch.tensor([2, 0, 3, 1])
    advantages, returns = gae(
        pad(rewards[order], (0, 3), value=math.nan),
        pad(values[order], (0, 3), value=math.nan),
        pad(MASK[order], (0, 3), value=False),
        gamma=0.9,
        gae_lambda=0.8,
    )
    torch.testing.assert_close(advantages, pad(plain_advantages[order], (0, 3)))
    torch.testing.assert_close(returns, pad(plain_returns[order], (0, 3)))
    assert torch.all(advantages[:, 7:] == 0)
    assert torch.all(returns[:, 7:] == 0)


def test_trap_7_returns_come_from_unwhitened_advantages() -> None:
    rewards, values = random_rows(6)
    rewards = 5 * rewards + 3
    advantages, returns = gae(rewards, values, MASK, gamma=1.0, gae_lambda=1.0)
    raw = advantages.clone()
    moments = masked_moments(advantages, MASK)
    whitened = whiten(advantages, MASK, mean=moments.mean, variance=moments.variance)
    # gamma = lambda = 1: the return is the plain sum of the rewards still to come.
    for row in range(len(MASK)):
        kept = kept_positions(row)
        to_come = rewards[row, kept].flip(0).cumsum(0).flip(0)
        torch.testing.assert_close(returns[row, kept], to_come)
    torch.testing.assert_close(returns[MASK], (raw + values)[MASK])
    assert torch.equal(advantages, raw), "whitening must not write into its input"
    assert not torch.allclose((whitened + values)[MASK], returns[MASK])


# ------------------------------------------------------------------------------ moments, whiten


def test_moments_equal_statistics_of_the_standard_library() -> None:
    (values,) = random_rows(7, 1)
    kept = values[MASK].tolist()
    moments = masked_moments(values.masked_fill(~MASK, math.nan), MASK)
    assert int(moments.count) == len(kept)
    assert float(moments.mean) == pytest.approx(statistics.fmean(kept), abs=1e-14)
    assert float(moments.variance) == pytest.approx(statistics.variance(kept), rel=1e-12)


def test_moments_hand_worked() -> None:
    # 1 and 3: mean 2, squared deviations 2, sample variance 2 / 1. Merged with 8 (alone: mean 8,
    # no deviation): mean 12 / 3 = 4, deviations 9 + 1 + 16 = 26, variance 13.
    first = masked_moments(torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]]))
    second = masked_moments(torch.tensor([[8.0]]), torch.tensor([[True]]))
    assert (float(first.mean), float(first.squared_deviations)) == (2.0, 2.0)
    assert float(first.variance) == 2.0
    merged = first.merge(second)
    assert int(merged.count) == 3
    assert float(merged.mean) == pytest.approx(4.0)
    assert float(merged.squared_deviations) == pytest.approx(26.0)
    assert float(merged.variance) == pytest.approx(13.0)


@pytest.mark.parametrize("split", [[[0], [1], [2], [3]], [[3, 1], [0, 2]], [[1], [0, 3, 2]]])
def test_trap_7_merged_moments_whiten_as_the_concatenated_batch(split: list[list[int]]) -> None:
    (advantages,) = random_rows(8, 1)
    merged: Moments | None = None
    for rows in split:
        shard = masked_moments(advantages[rows], MASK[rows])
        merged = shard if merged is None else merged.merge(shard)
    assert merged is not None
    kept = advantages[MASK].tolist()
    mean, deviation = statistics.fmean(kept), statistics.stdev(kept)
    for rows in split:
        part = whiten(advantages[rows], MASK[rows], mean=merged.mean, variance=merged.variance)
        expected = ((advantages[rows] - mean) / deviation) * MASK[rows]
        torch.testing.assert_close(part, expected, rtol=1e-7, atol=1e-7)


def test_trap_7_whitening_each_shard_by_itself_is_another_result() -> None:
    advantages = torch.tensor([[1.0, 2.0], [11.0, 12.0]], dtype=torch.float64)
    mask = torch.ones(2, 2, dtype=torch.bool)

    def whitened_by_own(rows: torch.Tensor) -> torch.Tensor:
        moments = masked_moments(rows, mask[: len(rows)])
        return whiten(rows, mask[: len(rows)], mean=moments.mean, variance=moments.variance)

    local = torch.cat([whitened_by_own(advantages[:1]), whitened_by_own(advantages[1:])])
    whole = whitened_by_own(advantages)
    # Locally both rows look alike; globally the second row is the better one.
    torch.testing.assert_close(local[0], local[1])
    assert torch.all(whole[0] < 0)
    assert torch.all(whole[1] > 0)


def test_whitened_batch_has_mean_zero_and_sample_variance_one() -> None:
    (advantages,) = random_rows(9, 1)
    moments = masked_moments(advantages, MASK)
    whitened = whiten(
        advantages.masked_fill(~MASK, math.nan), MASK, mean=moments.mean, variance=moments.variance
    )
    kept = whitened[MASK].tolist()
    assert statistics.fmean(kept) == pytest.approx(0, abs=1e-12)
    assert statistics.variance(kept) == pytest.approx(1, rel=1e-6)
    assert torch.all(whitened[~MASK] == 0)


def test_whitening_equal_advantages_gives_zeros() -> None:
    advantages = torch.full((2, 3), 4.0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    moments = masked_moments(advantages, mask)
    whitened = whiten(advantages, mask, mean=moments.mean, variance=moments.variance)
    assert torch.all(whitened == 0)


def test_shard_without_trainable_tokens_merges_as_nothing() -> None:
    (values,) = random_rows(10, 1)
    whole = masked_moments(values, MASK)
    empty = masked_moments(values, torch.zeros_like(MASK))
    assert int(empty.count) == 0
    for merged in (whole.merge(empty), empty.merge(whole)):
        assert int(merged.count) == int(whole.count)
        assert float(merged.mean) == pytest.approx(float(whole.mean), rel=1e-12)
        assert float(merged.variance) == pytest.approx(float(whole.variance), rel=1e-12)


def test_variance_of_one_number_is_refused() -> None:
    one = masked_moments(torch.tensor([[4.0]]), torch.tensor([[True]]))
    with pytest.raises(ShapeError, match="two"):
        _ = one.variance


def test_moments_far_from_zero_do_not_cancel() -> None:
    # In float32 a sum of squares near 1e8 has steps of 8, more than the variance it should show.
    values = torch.tensor([[10000.0, 10000.5, 10001.0, 10001.5]])
    shards = [masked_moments(values[:, part], torch.ones(1, 2).bool()) for part in ([0, 1], [2, 3])]
    assert float(shards[0].merge(shards[1]).variance) == pytest.approx(1.25 / 3, rel=1e-4)


# ----------------------------------------------------------------------------- group_advantages


def loop_group_advantages(
    rewards: list[float], group_ids: list[int], *, epsilon: float, scale_by_std: bool
) -> list[float]:
    members: dict[int, list[float]] = {}
    for reward, group in zip(rewards, group_ids, strict=True):
        members.setdefault(group, []).append(reward)
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        centred = reward - statistics.fmean(members[group])
        if len(members[group]) == 1:
            centred = 0.0
        elif scale_by_std:
            centred /= statistics.stdev(members[group]) + epsilon
        advantages.append(centred)
    return advantages


GROUP_REWARDS = torch.tensor([1.0, 0.0, 3.0, 5.0, 1.0, 2.0, 7.0, 5.0], dtype=torch.float64)
GROUP_IDS = torch.tensor([4, 2, 4, 10**12, 2, 4, 0, 10**12])


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("epsilon", [1e-4, 0.5])
def test_interleaved_groups_equal_the_loop(scale_by_std: bool, epsilon: float) -> None:
    result = group_advantages(GROUP_REWARDS, GROUP_IDS, epsilon=epsilon, scale_by_std=scale_by_std)
    expected = loop_group_advantages(
        GROUP_REWARDS.tolist(), GROUP_IDS.tolist(), epsilon=epsilon, scale_by_std=scale_by_std
    )
    assert result.advantages_B.tolist() == pytest.approx(expected, abs=1e-13)
    assert int(result.num_groups) == 4
    # The pair of equal fives and the group of one.
    assert int(result.num_zero_variance_groups) == 2


def test_groups_hand_worked() -> None:
    # Group 4 holds 1 3 2: mean 2, sample deviation 1. Group 2 holds 0 1: mean 1/2, sample
    # deviation sqrt(1/2) (not 1/2, the population's: at two members that is a factor sqrt 2).
    result = group_advantages(GROUP_REWARDS, GROUP_IDS)
    pair = 0.5 / (math.sqrt(0.5) + 1e-4)
    one = 1 / 1.0001
    expected = [-one, -pair, one, 0.0, pair, 0.0, 0.0, 0.0]
    assert result.advantages_B.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, -1e4 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_are_zero_variance_in_spite_of_rounding(
    reward: float, size: int, dtype: torch.dtype
) -> None:
    # 0.1 + 0.1 + 0.1 is not 0.3 in binary, so the mean of equal rewards may differ from them.
    result = group_advantages(torch.full((size,), reward, dtype=dtype), torch.full((size,), 5))
    assert result.advantages_B.tolist() == [0.0] * size
    assert int(result.num_zero_variance_groups) == 1
    assert int(result.num_groups) == 1


def test_whole_number_rewards_give_fractions() -> None:
    result = group_advantages(torch.tensor([0, 1, 1, 0]), torch.tensor([3, 3, 3, 3]), epsilon=0.0)
    # Mean 1/2, sample deviation sqrt(4 * 0.25 / 3).
    expected = 0.5 / math.sqrt(1 / 3)
    assert result.advantages_B.tolist() == pytest.approx([-expected, expected, expected, -expected])


def test_group_of_one_gets_no_advantage() -> None:
    result = group_advantages(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 1, 1]))
    assert result.advantages_B[0].item() == 0.0
    assert int(result.num_zero_variance_groups) == 1
    assert int(result.num_groups) == 2


def test_groups_ignore_order_names_and_other_groups() -> None:
    plain = group_advantages(GROUP_REWARDS, GROUP_IDS)
    order = torch.tensor([6, 3, 0, 7, 5, 1, 4, 2])
    shuffled = group_advantages(GROUP_REWARDS[order], GROUP_IDS[order])
    torch.testing.assert_close(shuffled.advantages_B, plain.advantages_B[order])
    assert shuffled.num_zero_variance_groups == plain.num_zero_variance_groups
    only = GROUP_IDS == 4
    alone = group_advantages(GROUP_REWARDS[only], torch.full((3,), 77))
    torch.testing.assert_close(alone.advantages_B, plain.advantages_B[only])


def test_groups_ignore_shift_and_scale_of_rewards_when_epsilon_is_tiny() -> None:
    plain = group_advantages(GROUP_REWARDS, GROUP_IDS, epsilon=1e-12)
    moved = group_advantages(3 * GROUP_REWARDS - 40, GROUP_IDS, epsilon=1e-12)
    torch.testing.assert_close(moved.advantages_B, plain.advantages_B, rtol=1e-9, atol=1e-12)


def test_nothing_here_carries_a_gradient() -> None:
    rewards, values = (rows.requires_grad_() for rows in random_rows(11).unbind())
    results = [
        token_rewards(SCORES, rewards, values, MASK, kl_coef=0.1),
        *gae(rewards, values, MASK, gamma=1.0, gae_lambda=0.95),
        whiten(rewards, MASK, mean=0.0, variance=1.0),
        group_advantages(rewards[:, 1], torch.tensor([0, 0, 1, 1])).advantages_B,
    ]
    assert not any(result.requires_grad for result in results)


def test_shapes_must_agree() -> None:
    rewards, values = random_rows(1)
    with pytest.raises(ShapeError):
        token_rewards(SCORES[:2], rewards, values, MASK, kl_coef=0.1)
    with pytest.raises(ShapeError):
        gae(rewards, values[:, 1:], MASK, gamma=1.0, gae_lambda=1.0)
    with pytest.raises(ShapeError):
        masked_moments(rewards, MASK[:2])
    with pytest.raises(ShapeError):
        whiten(rewards, MASK[:2], mean=0.0, variance=1.0)
    with pytest.raises(ShapeError):
        group_advantages(GROUP_REWARDS, GROUP_IDS[:2])
