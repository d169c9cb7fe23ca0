"""Invariances of the algorithms over many small random batches."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.learning.algorithms.advantages import (
    gae,
    group_advantages,
    masked_moments,
)
from flexrlhf.learning.algorithms.aggregation import aggregate
from flexrlhf.learning.algorithms.kl import AdaptiveKL, kl_estimate
from flexrlhf.learning.algorithms.policy import clipped_policy_loss
from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs

few = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(1, 5), st.integers(1, 8))
modes = st.sampled_from(["token_mean", "sequence_mean", "sequence_sum", "token_sum_norm"])


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def random_mask(generator: torch.Generator, size: tuple[int, int]) -> torch.Tensor:
    """A mask with holes; every row keeps a token."""
    mask = torch.rand(size, generator=generator) < 0.6
    mask[torch.arange(size[0]), torch.randint(size[1], (size[0],), generator=generator)] = True
    return mask


@few
@given(seeds, sizes, modes, st.integers(0, 5))
def test_aggregation_adds_up_over_any_cut(
    seed: int, size: tuple[int, int], mode: str, cut: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, mask = normal(generator, *size), random_mask(generator, size)
    counts = {"num_tokens": int(mask.sum()), "num_sequences": size[0], "max_tokens": 8}
    whole = aggregate(values, mask, mode, **counts)
    head, tail = slice(None, cut), slice(cut, None)
    parts = [aggregate(values[part], mask[part], mode, **counts) for part in (head, tail)]
    torch.testing.assert_close(parts[0] + parts[1], whole)


@few
@given(seeds, sizes, modes, st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_policy_loss_adds_up_row_by_row_and_counts_only_what_it_flattened(
    seed: int, size: tuple[int, int], mode: str, clip_low: float, clip_high: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    old, mask = normal(generator, *size), random_mask(generator, size)
    logprobs = (old + 0.3 * normal(generator, *size)).requires_grad_()
    advantages = normal(generator, *size)
    common = {
        "clip_low": clip_low,
        "clip_high": clip_high,
        "aggregation": mode,
        "num_tokens": int(mask.sum()),
        "num_sequences": size[0],
        "max_tokens": size[1],
    }
    whole = clipped_policy_loss(logprobs, old, advantages, mask, **common)
    rows = [
        clipped_policy_loss(logprobs[[b]], old[[b]], advantages[[b]], mask[[b]], **common)
        for b in range(size[0])
    ]
    torch.testing.assert_close(torch.stack([row.loss for row in rows]).sum(), whole.loss)
    # A clipped token is one through which no gradient flows.
    (gradient,) = torch.autograd.grad(whole.loss, logprobs)
    assert int(whole.clipped_tokens) == int((mask & (gradient == 0)).sum())
    assert sum(int(row.clipped_tokens) for row in rows) == int(whole.clipped_tokens)


@few
@given(seeds, sizes, st.floats(0, 1), st.floats(0, 1))
def test_gae_does_not_see_holes(
    seed: int, size: tuple[int, int], gamma: float, gae_lambda: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = normal(generator, 2, *size)
    mask = random_mask(generator, size)
    advantages, returns = gae(rewards, values, mask, gamma=gamma, gae_lambda=gae_lambda)
    for row in range(size[0]):
        kept = mask[row]
        dense = gae(
            rewards[row, kept][None],
            values[row, kept][None],
            torch.ones(1, int(kept.sum()), dtype=torch.bool),
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        torch.testing.assert_close(advantages[row, kept], dense[0][0])
        torch.testing.assert_close(returns[row, kept], dense[1][0])


@few
@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), min_size=1, max_size=5))
def test_moments_merge_as_if_concatenated(shards: list[list[float]]) -> None:
    everything = [value for shard in shards for value in shard]
    moments = None
    for shard in shards:
        values = torch.tensor([shard], dtype=torch.float64)
        part = masked_moments(values, torch.ones_like(values, dtype=torch.bool))
        moments = part if moments is None else moments.merge(part)
    assert moments is not None
    assert int(moments.count) == len(everything)
    assert float(moments.mean) == pytest.approx(statistics.fmean(everything), abs=1e-9)
    if len(everything) > 1:
        expected = statistics.variance(everything)
        assert float(moments.variance) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@few
@given(
    seeds,
    st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), min_size=1, max_size=12),
    st.integers(-50, 50),
)
def test_groups_ignore_order_and_shift(seed: int, draws: list[tuple[int, int]], shift: int) -> None:
    groups = torch.tensor([group for group, _ in draws])
    rewards = torch.tensor([float(reward) for _, reward in draws], dtype=torch.float64)
    plain = group_advantages(rewards, groups)
    order = torch.randperm(len(draws), generator=torch.Generator().manual_seed(seed))
    moved = group_advantages(rewards[order] + shift, groups[order])
    torch.testing.assert_close(moved.advantages_B, plain.advantages_B[order])

    members = {group: {r for g, r in draws if g == group} for group, _ in draws}
    flat = sum(len(values) == 1 for values in members.values())
    assert int(plain.num_groups) == int(moved.num_groups) == len(members)
    assert int(plain.num_zero_variance_groups) == int(moved.num_zero_variance_groups) == flat


@few
@given(st.floats(-15, 0), st.floats(-15, 0))
def test_k2_and_k3_are_never_negative(logprob: float, reference: float) -> None:
    pair = torch.tensor([[logprob], [reference]], dtype=torch.float64)
    for estimator in ("k2", "k3"):
        assert kl_estimate(pair[0], pair[1], estimator).item() >= -1e-12


@few
@given(st.lists(st.floats(0, 1e3), max_size=20), st.integers(1, 100))
def test_adaptive_coefficient_moves_at_most_a_fifth_per_horizon(
    measured: list[float], num_samples: int
) -> None:
    controller = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1000)
    for measured_kl in measured:
        before = controller.coefficient
        controller.update(measured_kl=measured_kl, num_samples=num_samples)
        step = controller.coefficient / before - 1
        assert abs(step) <= 0.2 * num_samples / 1000 + 1e-12
        assert math.copysign(1, step) == math.copysign(1, measured_kl - 6.0) or abs(step) < 1e-12


@few
@given(seeds, st.integers(1, 9), st.integers(1, 12), st.floats(0.3, 3))
def test_chunks_do_not_show_in_logprobs(
    seed: int, num_tokens: int, chunk_tokens: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = normal(generator, num_tokens, 3), normal(generator, 5, 3)
    targets = torch.randint(5, (num_tokens,), generator=generator)
    logprobs, entropy = selected_logprobs(
        hidden,
        weight,
        targets,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=True,
    )
    expected = torch.log_softmax(hidden @ weight.T / temperature, -1)
    torch.testing.assert_close(logprobs, expected.gather(-1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=expected).entropy())
