"""The barrier against loops in float64: GAE with KL in the reward, groups, and measured KL."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.scoring.advantage import AdvantageSettings, assign_advantages

GAMMA, LAMBDA, KL_COEF = 0.95, 0.9, 0.3
GAE = AdvantageSettings("gae", gamma=GAMMA, gae_lambda=LAMBDA, whiten=False)
GROUP = AdvantageSettings("group", kl_in_reward=False, epsilon=1e-4)
SHAPES = ((3, 4), (1, 6), (5, 1), (2, 3), (4, 5), (2, 2))
REWARDS = (1.5, -0.25, 2.0, 0.0, 0.75, -1.0)


@pytest.fixture
def samples() -> list[Sample]:
    """Six answers of random numbers; rows differ in length of prompt and answer."""
    generator = torch.Generator().manual_seed(11)
    made = []
    for number, (num_prompt, num_response) in enumerate(SHAPES):
        length = num_prompt + num_response
        mask = torch.arange(length) >= num_prompt
        fields = {
            name: torch.randn(length, generator=generator, dtype=torch.float64) * mask
            for name in ("old_logprobs", "reference_logprobs", "values")
        }
        made.append(
            Sample(
                sample_id=number,
                prompt=Prompt(number, (0,) * num_prompt, ""),
                tokens=torch.zeros(length, dtype=torch.int64),
                num_prompt_tokens=num_prompt,
                mask=mask,
                fields=fields,
                reward=REWARDS[number],
            )
        )
    return made


def kl_of(difference: float, estimator: str) -> float:
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference**2 / 2
    return math.exp(-difference) - 1 + difference


def token_rewards(sample: Sample, kl_coef: float, estimator: str = "k1") -> dict[int, float]:
    """Returns the reward of each generated token by its position."""
    positions = range(sample.num_prompt_tokens, sample.num_tokens)
    own, reference = sample.fields["old_logprobs"], sample.fields["reference_logprobs"]
    rewards = {
        t: -kl_coef * kl_of(own[t].item() - reference[t].item(), estimator) for t in positions
    }
    rewards[sample.num_tokens - 1] += sample.reward
    return rewards


def gae_by_loop(sample: Sample, rewards: dict[int, float]) -> dict[int, float]:
    """Returns A_t as the sum over all later errors, without a recursion."""
    values = sample.fields["values"]
    last = sample.num_tokens - 1
    errors = {
        t: r + (GAMMA * values[t + 1].item() if t < last else 0.0) - values[t].item()
        for t, r in rewards.items()
    }
    return {
        t: math.fsum((GAMMA * LAMBDA) ** (k - t) * errors[k] for k in range(t, last + 1))
        for t in rewards
    }


def by_position(sample: Sample, name: str) -> dict[int, float]:
    values = sample.fields[name]
    assert values.shape == sample.tokens.shape
    assert not values[~sample.mask].any()
    return {t: values[t].item() for t in range(sample.num_prompt_tokens, sample.num_tokens)}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gae_with_kl_in_the_reward(samples: list[Sample], estimator: str):
    settings = AdvantageSettings(
        "gae", gamma=GAMMA, gae_lambda=LAMBDA, whiten=False, kl_estimator=estimator
    )
    assign_advantages(samples, range(6), settings, kl_coef=KL_COEF)
    for sample in samples:
        expected = gae_by_loop(sample, token_rewards(sample, KL_COEF, estimator))
        assert by_position(sample, "advantages") == pytest.approx(expected, rel=1e-12)
        returns = {t: a + sample.fields["values"][t].item() for t, a in expected.items()}
        assert by_position(sample, "returns") == pytest.approx(returns, rel=1e-12)


def test_whitening_is_over_the_tokens_of_the_whole_batch(samples: list[Sample]):
    plain = [gae_by_loop(sample, token_rewards(sample, KL_COEF)) for sample in samples]
    everything = [advantage for row in plain for advantage in row.values()]
    mean, deviation = statistics.fmean(everything), statistics.stdev(everything)
    settings = AdvantageSettings("gae", gamma=GAMMA, gae_lambda=LAMBDA, epsilon=1e-12)
    assign_advantages(samples, range(6), settings, kl_coef=KL_COEF)
    for sample, row in zip(samples, plain, strict=True):
        expected = {t: (advantage - mean) / deviation for t, advantage in row.items()}
        assert by_position(sample, "advantages") == pytest.approx(expected, rel=1e-9)
        # The targets of the critic are those of the advantages before whitening.
        returns = {t: a + sample.fields["values"][t].item() for t, a in row.items()}
        assert by_position(sample, "returns") == pytest.approx(returns, rel=1e-9)


@pytest.mark.parametrize("has_reference", [True, False])
def test_without_kl_in_the_reward_the_score_alone_counts(
    samples: list[Sample], has_reference: bool
):
    expected = [gae_by_loop(sample, token_rewards(sample, 0.0)) for sample in samples]
    settings = AdvantageSettings(
        "gae", gamma=GAMMA, gae_lambda=LAMBDA, whiten=False, kl_in_reward=not has_reference
    )
    if not has_reference:
        for sample in samples:
            del sample.fields["reference_logprobs"]
    assign_advantages(samples, range(6), settings, kl_coef=KL_COEF)
    for sample, row in zip(samples, expected, strict=True):
        assert by_position(sample, "advantages") == pytest.approx(row, rel=1e-12)


@pytest.mark.parametrize("scale_by_std", [True, False])
def test_groups_compare_the_answers_to_one_prompt(samples: list[Sample], scale_by_std: bool):
    groups = {8: (0, 2, 5), 3: (1, 3), 4: (4,)}
    ids = [8, 3, 8, 3, 4, 8]
    settings = AdvantageSettings(
        "group", kl_in_reward=False, epsilon=1e-4, scale_by_std=scale_by_std
    )
    result = assign_advantages(samples, ids, settings, kl_coef=KL_COEF)
    assert (result.num_groups, result.num_zero_variance_groups) == (3, 1)
    for members in groups.values():
        rewards = [REWARDS[number] for number in members]
        spread = statistics.stdev(rewards) + 1e-4 if len(rewards) > 1 else 1.0
        for number in members:
            advantage = REWARDS[number] - statistics.fmean(rewards)
            advantage /= spread if scale_by_std else 1.0
            sample = samples[number]
            expected = dict.fromkeys(range(sample.num_prompt_tokens, sample.num_tokens), advantage)
            assert by_position(sample, "advantages") == pytest.approx(expected, rel=1e-12)
            assert "returns" not in sample.fields


def test_groups_with_kl_in_the_reward_compare_what_is_left_of_it(samples: list[Sample]):
    totals = [math.fsum(token_rewards(sample, KL_COEF).values()) for sample in samples]
    settings = AdvantageSettings("group", epsilon=1e-4, scale_by_std=False)
    assign_advantages(samples, [0, 0, 0, 1, 1, 1], settings, kl_coef=KL_COEF)
    for number, sample in enumerate(samples):
        group = totals[:3] if number < 3 else totals[3:]
        advantage = sample.fields["advantages"][-1].item()
        assert advantage == pytest.approx(totals[number] - statistics.fmean(group), rel=1e-10)


def test_equal_rewards_teach_nothing_and_are_counted(samples: list[Sample]):
    for sample in samples:
        sample.reward = 0.1
    result = assign_advantages(samples, [1, 1, 1, 2, 2, 2], GROUP, kl_coef=0.0)
    assert (result.num_groups, result.num_zero_variance_groups) == (2, 2)
    assert all(not sample.fields["advantages"].any() for sample in samples)


@pytest.mark.parametrize("settings", [GAE, GROUP])
def test_the_measured_kl(samples: list[Sample], settings: AdvantageSettings):
    per_answer = [
        math.fsum(
            sample.fields["old_logprobs"][t].item() - sample.fields["reference_logprobs"][t].item()
            for t in range(sample.num_prompt_tokens, sample.num_tokens)
        )
        for sample in samples
    ]
    result = assign_advantages(samples, range(6), settings, kl_coef=KL_COEF)
    num_tokens = sum(num_response for _, num_response in SHAPES)
    assert result.kl_per_token == pytest.approx(math.fsum(per_answer) / num_tokens, rel=1e-12)
    assert result.kl_per_answer == pytest.approx(statistics.fmean(per_answer), rel=1e-12)


def test_without_a_reference_no_kl_is_measured(samples: list[Sample]):
    for sample in samples:
        del sample.fields["reference_logprobs"]
    result = assign_advantages(samples, range(6), GROUP, kl_coef=0.0)
    assert (result.kl_per_token, result.kl_per_answer) == (None, None)


@pytest.mark.parametrize("settings", [GAE, AdvantageSettings("gae"), GROUP])
def test_the_order_of_the_samples_does_not_matter(samples: list[Sample], settings):
    ids = [0, 1, 0, 1, 0, 1]
    assign_advantages(samples, ids, settings, kl_coef=KL_COEF)
    expected = [sample.fields["advantages"].clone() for sample in samples]
    order = [4, 1, 5, 0, 3, 2]
    assign_advantages(
        [samples[p] for p in order], [ids[p] for p in order], settings, kl_coef=KL_COEF
    )
    for sample, advantages in zip(samples, expected, strict=True):
        torch.testing.assert_close(sample.fields["advantages"], advantages, rtol=1e-11, atol=1e-14)


def test_rows_are_copies_that_do_not_keep_the_batch_alive(samples: list[Sample]):
    assign_advantages(samples, range(6), GAE, kl_coef=KL_COEF)
    for sample in samples:
        storage = sample.fields["advantages"].untyped_storage()
        assert storage.nbytes() == 8 * sample.num_tokens
