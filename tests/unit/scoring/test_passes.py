"""Scores of samples do not depend on chunks or order, and match each sample scored alone."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.scoring.passes import (
    score_logprobs,
    score_rewards,
    score_shared,
    score_values,
)

LENGTHS = (7, 19, 3, 12, 12, 5, 16)
BUDGETS = (19, 40, 1000)
SOURCE = ModelSource(
    architecture={
        "model_type": "llama",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    },
    dtype="float64",
)


def sample(sample_id: int, length: int) -> Sample:
    generator = torch.Generator().manual_seed(sample_id)
    tokens = torch.randint(61, (length,), generator=generator)
    prompt_tokens = 1 + length // 3
    return Sample(
        sample_id=sample_id,
        prompt=Prompt(0, tuple(tokens[:prompt_tokens].tolist()), ""),
        tokens=tokens,
        num_prompt_tokens=prompt_tokens,
        mask=torch.arange(length) >= prompt_tokens,
    )


@pytest.fixture
def samples() -> list[Sample]:
    return [sample(index, length) for index, length in enumerate(LENGTHS)]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_logprobs_are_those_of_each_sample_alone(samples, max_tokens):
    model = load_policy(SOURCE)
    expected = []
    for one in samples:
        logits = model(one.tokens[None]).logits[0, :-1] / 0.8
        chosen = torch.log_softmax(logits, dim=-1).gather(-1, one.tokens[1:, None]).squeeze(-1)
        expected.append(torch.nn.functional.pad(chosen, (1, 0)).detach() * one.mask)
    assert_close(score_logprobs(model, samples, temperature=0.8, max_tokens=max_tokens), expected)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_values_are_those_of_each_sample_alone(samples, max_tokens):
    scorer = load_scorer(SOURCE)
    expected = []
    for one in samples:
        outputs = scorer.score(scorer.model(one.tokens[None]).last_hidden_state)[0, :-1, 0]
        expected.append(torch.nn.functional.pad(outputs, (1, 0)).detach() * one.mask)
    assert_close(score_values(scorer, samples, max_tokens=max_tokens), expected)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_rewards_are_those_of_each_sample_alone(samples, max_tokens):
    scorer = load_scorer(SOURCE)
    scorer.config.pad_token_id = None
    expected = [scorer(one.tokens[None]).logits.item() for one in samples]
    assert score_rewards(scorer, samples, max_tokens=max_tokens) == pytest.approx(
        expected, rel=0, abs=1e-12
    )


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_shared_scores_are_those_of_two_passes(samples, max_tokens):
    model = SharedActorCritic(load_policy(SOURCE))
    logprobs, values = score_shared(model, samples, temperature=0.8, max_tokens=max_tokens)
    assert_close(logprobs, score_logprobs(model, samples, temperature=0.8, max_tokens=1000))
    assert_close(values, score_values(model, samples, max_tokens=1000))


def test_results_follow_the_order_of_the_samples(samples):
    model, scorer = load_policy(SOURCE), load_scorer(SOURCE)
    backwards = samples[::-1]
    assert_close(
        score_logprobs(model, backwards, temperature=1.0, max_tokens=40)[::-1],
        score_logprobs(model, samples, temperature=1.0, max_tokens=40),
    )
    assert score_rewards(scorer, backwards, max_tokens=40)[::-1] == pytest.approx(
        score_rewards(scorer, samples, max_tokens=40), rel=0, abs=1e-12
    )


def test_results_carry_no_gradient_and_own_their_memory(samples):
    model = SharedActorCritic(load_policy(SOURCE))
    logprobs, values = score_shared(model, samples, temperature=1.0, max_tokens=1000)
    rewards = score_rewards(load_scorer(SOURCE), samples, max_tokens=1000)
    assert all(isinstance(reward, float) for reward in rewards)
    for tensor, one in zip((*logprobs, *values), (*samples, *samples), strict=True):
        assert not tensor.requires_grad
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == one.num_tokens * tensor.element_size()


def test_chunks_stay_within_the_budget(samples):
    model = load_policy(SOURCE)
    sizes = []
    model.model.register_forward_pre_hook(
        lambda _module, _arguments, inputs: sizes.append(inputs["input_ids"].numel()),
        with_kwargs=True,
    )
    score_logprobs(model, samples, temperature=1.0, max_tokens=40)
    assert len(sizes) > 1
    assert max(sizes) <= 40


def test_no_samples_give_no_scores():
    model = SharedActorCritic(load_policy(SOURCE))
    assert score_logprobs(model, [], temperature=1.0, max_tokens=40) == []
    assert score_shared(model, [], temperature=1.0, max_tokens=40) == ([], [])
    assert score_rewards(load_scorer(SOURCE), [], max_tokens=40) == []


def test_sample_longer_than_a_chunk_is_refused(samples):
    with pytest.raises(DataError, match="19 tokens exceeds"):
        score_values(load_scorer(SOURCE), samples, max_tokens=18)
