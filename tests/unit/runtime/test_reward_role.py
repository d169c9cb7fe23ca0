"""The reward of several parts: totals, breakdown, and which parts there are."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.config.reward import RewardFunction, Rewards
from flexrlhf.core.errors import ConfigError, DataError, RunFailed
from flexrlhf.learning.models.loading import load_scorer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.runtime.reward_role import RewardRole, reward_functions

SOURCE = '''
def short(prompts, completions, **columns):
    """Applies to texts of one word only."""
    return [1.0 if " " not in completion else None for completion in completions]


def mean(prompts, completions, **columns):
    return [0.0 for _ in completions]


model = std = mean


def number(prompts, completions, number, **columns):
    return [float(value) for value in number]
'''


@pytest.fixture
def function_path(tmp_path):
    (tmp_path / "rewards.py").write_text(SOURCE)
    return lambda name: f"{tmp_path / 'rewards.py'}:{name}"


@pytest.fixture
def functions(function_path):
    return reward_functions(
        Rewards(
            functions=(
                RewardFunction(path=function_path("short"), weight=0.5),
                RewardFunction(path=function_path("number"), weight=-2.0),
            )
        )
    )


@pytest.fixture
def model():
    architecture = {
        "model_type": "llama",
        "vocab_size": 13,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return load_scorer(ModelSource(architecture=architecture, dtype="float64"))


@pytest.fixture
def samples(make_sample):
    texts = ("red", "red green", "blue")
    return [make_sample(n, 2 + n, text, number=n + 0.5) for n, text in enumerate(texts)]


def test_functions_alone(functions, samples):
    RewardRole(None, 1.0, functions, max_tokens=20).score(samples)
    assert [sample.reward for sample in samples] == [0.5 - 1.0, -3.0, 0.5 - 5.0]
    assert samples[0].reward_parts == {"short": 1.0, "number": 0.5}
    assert samples[1].reward_parts == {"number": 1.5}


@pytest.mark.parametrize("max_tokens", [6, 100])
def test_a_model_alone_gives_its_score_at_the_last_token(model, samples, max_tokens):
    with torch.no_grad():
        expected = [model(sample.tokens[None]).logits.item() for sample in samples]
    RewardRole(model, 3.0, [], max_tokens=max_tokens).score(samples)
    for sample, score in zip(samples, expected, strict=True):
        assert sample.reward_parts == {"model": pytest.approx(score, rel=1e-9)}
        assert sample.reward == pytest.approx(3.0 * score, rel=1e-9)


def test_model_and_functions_together(model, functions, samples):
    with torch.no_grad():
        scores = [model(sample.tokens[None]).logits.item() for sample in samples]
    RewardRole(model, 2.0, functions, max_tokens=20).score(samples)
    assert list(samples[0].reward_parts) == ["short", "number", "model"]
    assert samples[0].reward == pytest.approx(0.5 - 1.0 + 2.0 * scores[0], rel=1e-9)
    assert samples[1].reward == pytest.approx(-3.0 + 2.0 * scores[1], rel=1e-9)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_model_whose_score_is_not_finite_stops_the_run(model, functions, samples, spoilt):
    """Not a number means elsewhere that a part does not apply; here it would hide a fault."""
    with torch.no_grad():
        model.score.weight.fill_(spoilt)
    with pytest.raises(RunFailed, match=r"reward model gives (nan|inf|-inf) to sample 0"):
        RewardRole(model, 1.0, functions, max_tokens=20).score(samples)


def test_an_answer_to_which_no_part_applies(function_path, samples):
    section = Rewards(functions=(RewardFunction(path=function_path("short")),))
    with pytest.raises(DataError, match="No reward applies to answer 1"):
        RewardRole(None, 1.0, reward_functions(section), max_tokens=20).score(samples)


def test_two_parts_of_one_name(function_path):
    twice = (RewardFunction(path=function_path("short")),) * 2
    with pytest.raises(ConfigError, match="has short more than once"):
        reward_functions(Rewards(functions=twice))


@pytest.mark.parametrize("name", ["mean", "std", "model"])
def test_a_function_whose_metric_would_hide_another(function_path, name):
    section = Rewards(functions=(RewardFunction(path=function_path(name)),))
    with pytest.raises(ConfigError, match=f"called {name}"):
        reward_functions(section)


def test_built_in_functions_go_by_their_name():
    (reward,) = reward_functions(Rewards(functions=(RewardFunction(name="math", weight=0.25),)))
    assert (reward.name, reward.weight) == ("math", 0.25)
