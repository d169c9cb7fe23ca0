"""Draws follow the distribution that temperature, top-k and top-p leave."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flexrlhf.core.errors import ConfigError, RunFailed
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.sampling import draw_tokens, invert_cdf, keep_most_likely

LOGITS = [1.0, -0.5, 0.3, 2.0, -3.0, 0.0]


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(logit / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def grid(size: int) -> torch.Tensor:
    """Evenly spread numbers: the share of a token is then its probability to 1 / size."""
    return (torch.arange(size, dtype=torch.float64) + 0.5) / size


def at(position: int) -> torch.Tensor:
    """The same position for every row."""
    return torch.tensor([position])


def kept(logits: list[float], top_k: int = 0, top_p: float = 1.0) -> list[int]:
    result = keep_most_likely(torch.tensor([logits], dtype=torch.float64), top_k, top_p)
    return torch.isfinite(result[0]).nonzero().squeeze(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_are_the_softmax_of_logits_over_temperature(temperature: float) -> None:
    size = 20_000
    sampling = Sampling(max_new_tokens=1, temperature=temperature)
    logits = torch.tensor([LOGITS]).expand(size, -1)
    drawn = draw_tokens(logits, grid(size), sampling, positions_B=at(0))
    expected = softmax(LOGITS, temperature)
    shares = torch.bincount(drawn.tokens, minlength=6) / size
    assert shares.tolist() == pytest.approx(expected, abs=1.5 / size)
    logprobs = [math.log(expected[token]) for token in drawn.tokens.tolist()]
    assert drawn.logprobs.tolist() == pytest.approx(logprobs, abs=1e-6)
    assert torch.equal(drawn.logprobs, drawn.sampling_logprobs)


def test_random_numbers_give_the_distribution_by_chi_squared() -> None:
    size = 20_000
    numbers = torch.from_numpy(np.random.default_rng(0).random(size))
    logits = torch.tensor([LOGITS]).expand(size, -1)
    drawn = draw_tokens(logits, numbers, Sampling(max_new_tokens=1), positions_B=at(0))
    expected = size * np.array(softmax(LOGITS))
    counts = torch.bincount(drawn.tokens, minlength=6).numpy()
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # 5 degrees of freedom, 1 in 1000


def test_behaviour_logprobs_are_those_of_the_kept_tokens() -> None:
    sampling = Sampling(max_new_tokens=1, top_k=3, temperature=0.8)
    drawn = draw_tokens(torch.tensor([LOGITS] * 50), grid(50), sampling, positions_B=at(0))
    full = softmax(LOGITS, 0.8)
    total = full[0] + full[2] + full[3]
    assert set(drawn.tokens.tolist()) == {0, 2, 3}
    for token, logprob, sampled in zip(
        drawn.tokens.tolist(),
        drawn.logprobs.tolist(),
        drawn.sampling_logprobs.tolist(),
        strict=True,
    ):
        assert logprob == pytest.approx(math.log(full[token]), abs=1e-6)
        assert sampled == pytest.approx(math.log(full[token] / total), abs=1e-6)


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [
        (0, [0, 1, 2, 3]),
        (1, [3]),
        (2, [0, 2, 3]),
        (3, [0, 2, 3]),
        (4, [0, 1, 2, 3]),
        (9, [0, 1, 2, 3]),
    ],
)
def test_top_k_keeps_all_tokens_as_likely_as_the_last(top_k: int, expected: list[int]) -> None:
    assert kept([1.0, 0.0, 1.0, 2.0], top_k=top_k) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-9, [1]),
        (0.49, [1]),
        (0.51, [1, 2]),
        (0.74, [1, 2]),
        (0.76, [0, 1, 2]),
        (0.99, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p: float, expected: list[int]) -> None:
    """Probabilities 1/8, 1/2, 1/4, 1/8: the equally likely 0 and 3 come in order of ids."""
    logits = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]
    assert kept(logits, top_p=top_p) == expected


def test_top_p_counts_what_top_k_left() -> None:
    """Of 1/2, 1/4, 1/8, 1/8 top-k keeps two: 2/3 and 1/3, so 0.6 needs only the first."""
    logits = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    assert kept(logits, top_k=2, top_p=0.6) == [0]
    assert kept(logits, top_k=0, top_p=0.6) == [0, 1]


def test_equal_logits_keep_the_lowest_ids() -> None:
    assert kept([0.0] * 8, top_p=0.25) == [0, 1]
    assert kept([0.0] * 8, top_k=2) == list(range(8))


def test_greedy_takes_the_best_and_of_equals_the_first() -> None:
    sampling = Sampling(max_new_tokens=1, greedy=True, temperature=2.0)
    logits = torch.tensor([LOGITS, [1.0, 5.0, 5.0, 0.0, 5.0, 0.0]])
    drawn = draw_tokens(logits, torch.full((2,), 0.5).double(), sampling, positions_B=at(0))
    assert drawn.tokens.tolist() == [3, 1]
    assert drawn.sampling_logprobs.tolist() == [0.0, 0.0]
    assert drawn.logprobs[0].item() == pytest.approx(math.log(softmax(LOGITS, 2.0)[3]), abs=1e-6)


@pytest.mark.parametrize("greedy", [False, True])
def test_end_tokens_wait_for_the_minimum(greedy: bool) -> None:
    sampling = Sampling(
        max_new_tokens=9, min_new_tokens=2, end_tokens=(3, 0), greedy=greedy, temperature=0.5
    )
    logits = torch.tensor([LOGITS] * 200)
    early = draw_tokens(logits, grid(200), sampling, positions_B=at(1))
    late = draw_tokens(logits, grid(200), sampling, positions_B=at(2))
    assert not {0, 3} & set(early.tokens.tolist())
    assert 3 in late.tokens.tolist()
    full = softmax(LOGITS, 0.5)
    token = early.tokens[0].item()
    assert early.logprobs[0].item() == pytest.approx(math.log(full[token]), abs=1e-6)
    if not greedy:
        left = 1 - full[0] - full[3]
        expected = math.log(full[token] / left)
        assert early.sampling_logprobs[0].item() == pytest.approx(expected, abs=1e-6)


def test_rows_at_different_positions_have_their_own_minimum() -> None:
    sampling = Sampling(max_new_tokens=9, min_new_tokens=2, end_tokens=(3, 0))
    logits = torch.tensor([LOGITS] * 6)
    numbers = torch.full((6,), 0.5).double()
    positions = torch.tensor([0, 2, 1, 7, 2, 0])
    drawn = draw_tokens(logits, numbers, sampling, positions_B=positions)
    alone = [
        draw_tokens(logits[:1], numbers[:1], sampling, positions_B=at(position)).tokens.item()
        for position in positions.tolist()
    ]
    assert drawn.tokens.tolist() == alone
    assert len(set(alone)) == 2


def test_a_row_does_not_depend_on_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 50, generator=generator)
    numbers = torch.rand(16, generator=generator, dtype=torch.float64)
    sampling = Sampling(max_new_tokens=1, top_k=20, top_p=0.9)
    together = draw_tokens(logits, numbers, sampling, positions_B=at(0)).tokens
    alone = [
        draw_tokens(
            logits[i : i + 1], numbers[i : i + 1], sampling, positions_B=at(0)
        ).tokens.item()
        for i in range(16)
    ]
    assert together.tolist() == alone


def test_the_cdf_is_inverted_in_order_of_ids_and_skips_impossible_tokens() -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]] * 6, dtype=torch.float64)
    numbers = torch.tensor([1e-16, 0.25, 0.2501, 0.75, 0.7501, 1 - 2.0**-53], dtype=torch.float64)
    assert invert_cdf(probabilities, numbers).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("size", [2048, 2049, 2304, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_vocabulary_is_inverted_as_a_plain_sum_would(size: int, dtype: torch.dtype) -> None:
    """Each token at the middle of its share of the cumulative sum, impossible ones never."""
    generator = torch.Generator().manual_seed(size)
    probabilities = torch.rand(size, generator=generator, dtype=dtype)
    probabilities[::7] = 0
    probabilities[:300] = 0
    ends = probabilities.double().cumsum(0)
    uniforms = (ends - probabilities.double() / 2) / ends[-1]
    found = invert_cdf(probabilities.expand(size, -1), uniforms)
    possible = probabilities > 0
    assert torch.equal(found[possible], torch.arange(size)[possible])
    smallest = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    ends = invert_cdf(probabilities.expand(2, -1), smallest).tolist()
    assert ends == [int(possible.nonzero()[0]), int(possible.nonzero()[-1])]


def test_a_row_of_a_large_vocabulary_does_not_depend_on_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 50_000, generator=generator) * 3
    numbers = torch.rand(16, generator=generator, dtype=torch.float64)
    sampling = Sampling(max_new_tokens=1)
    together = draw_tokens(logits, numbers, sampling, positions_B=at(0))
    for row in range(16):
        rows = slice(row, row + 1)
        alone = draw_tokens(logits[rows].clone(), numbers[rows], sampling, positions_B=at(0))
        assert torch.equal(alone.tokens, together.tokens[rows])
        assert torch.equal(alone.logprobs, together.logprobs[rows])


def test_logprobs_of_a_peaked_distribution_are_as_exact_as_log_softmax() -> None:
    logits = torch.tensor([[60.0, 0.0, -60.0, 30.0]])
    sampling = Sampling(max_new_tokens=4, min_new_tokens=4, end_tokens=(0, 3))
    drawn = draw_tokens(logits, torch.tensor([0.5]).double(), sampling, positions_B=at(0))
    assert drawn.tokens.tolist() == [1]
    assert drawn.logprobs.tolist() == [-60.0]


def test_float64_logits_are_not_rounded_and_bfloat16_ones_are_widened() -> None:
    logits = torch.tensor([LOGITS], dtype=torch.float64)
    sampling = Sampling(max_new_tokens=1)
    number = torch.tensor([0.99], dtype=torch.float64)
    drawn = draw_tokens(logits, number, sampling, positions_B=at(0))
    token = drawn.tokens.item()
    assert drawn.logprobs.item() == pytest.approx(math.log(softmax(LOGITS)[token]), abs=1e-15)
    half = draw_tokens(logits.bfloat16(), number, sampling, positions_B=at(0))
    assert half.logprobs.dtype == torch.float32
    assert torch.equal(logits, torch.tensor([LOGITS], dtype=torch.float64))  # not changed in place


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("greedy", [False, True])
def test_logits_that_are_no_numbers_end_the_run(bad: float, greedy: bool) -> None:
    logits = torch.tensor([LOGITS, [0.0, bad, 0.0, 0.0, 0.0, 0.0]])
    sampling = Sampling(max_new_tokens=1, greedy=greedy)
    with pytest.raises(RunFailed, match="not finite"):
        draw_tokens(logits, torch.full((2,), 0.5).double(), sampling, positions_B=at(0))


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"temperature": 0.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_new_tokens": 9},
    ],
)
def test_values_out_of_range_are_named(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"rollout.{name} = "):
        Sampling(**{"max_new_tokens": 8, **options})


def test_both_logprobs_are_exact_where_some_rows_may_not_end_yet() -> None:
    """Against sums in float64; one end token has nearly all of the probability."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    logits[::2, 7] += 60
    positions = torch.tensor([0, 1, 2, 3, 0, 5])
    sampling = Sampling(max_new_tokens=9, min_new_tokens=3, end_tokens=(7, 11, 7), temperature=0.7)
    uniforms = torch.rand(6, generator=generator).double()
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        drawn = draw_tokens(logits.to(dtype), uniforms, sampling, positions_B=positions)
        for row in range(6):
            weights = (logits[row] / 0.7).exp()
            allowed = weights.clone()
            if positions[row] < 3:
                allowed[[7, 11]] = 0
            token = int(drawn.tokens[row])
            assert allowed[token] > 0
            full = (weights[token] / weights.sum()).log().item()
            sampled = (allowed[token] / allowed.sum()).log().item()
            assert drawn.logprobs[row].item() == pytest.approx(full, abs=error)
            assert drawn.sampling_logprobs[row].item() == pytest.approx(sampled, abs=error)
