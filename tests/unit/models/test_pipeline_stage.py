"""Stages hold their own weights under the whole model's names, and one after another compute it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.forward import hidden_states, token_logprobs, token_values
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.pipeline_stage import cut_to_stage, stage_layers


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 4, [2, 2, 2, 1]), (3, 3, [1, 1, 1])],
)
def test_stages_share_the_layers_and_the_last_has_fewest(num_layers, num_stages, sizes):
    held = [stage_layers(num_layers, stage, num_stages) for stage in range(num_stages)]
    assert [len(layers) for layers in held] == sizes
    assert [layer for layers in held for layer in layers] == list(range(num_layers))


def run_in_turn(model: Any, batch: Any, num_stages: int, call: Any) -> tuple[Any, list[set[str]]]:
    """Returns what the last stage makes of a batch, and the names of each stage's weights."""
    hidden, names = None, []
    for stage in range(num_stages):
        part = copy.deepcopy(model)
        received = cut_to_stage(part, stage, num_stages)
        assert (received is None) == (stage == 0)
        if received is not None:
            received.hidden = hidden
        names.append({name for name, _ in part.named_parameters(remove_duplicate=False)})
        if stage == num_stages - 1:
            return call(part, batch), names
        hidden = hidden_states(part, batch)
    raise AssertionError


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_stages_in_turn_compute_what_the_model_does(make_source, make_batch, family: str):
    model, batch = load_policy(make_source(family)), make_batch()
    whole = token_logprobs(model, batch).logprobs
    staged, names = run_in_turn(model, batch, 2, lambda m, b: token_logprobs(m, b).logprobs)
    torch.testing.assert_close(staged, whole, rtol=0, atol=1e-12)
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert names[0] | names[1] == every
    assert not names[0] & names[1]


def test_scorers_and_value_heads_lie_in_the_last_stage(make_source, make_batch):
    batch = make_batch()
    for model in (
        load_scorer(make_source("llama")),
        SharedActorCritic(load_policy(make_source("llama"))),
    ):
        staged, names = run_in_turn(model, batch, 2, token_values)
        torch.testing.assert_close(staged, token_values(model, batch), rtol=0, atol=1e-12)
        heads = {"score.weight", "value_head.weight", "value_head.bias"}
        assert not heads & names[0]
        assert heads & names[1]


def test_fewer_layers_than_stages_are_refused(make_source):
    model = load_policy(make_source("llama"))
    with pytest.raises(ConfigError) as caught:
        cut_to_stage(model, 0, 5)
    assert caught.value.wrong == "pipeline_parallel = 5, but the model has 2 layers."
    assert "at least one layer" in caught.value.right
    assert caught.value.do == "Set pipeline_parallel to 2 or less."


def test_a_family_that_is_not_known_is_refused(make_source):
    model = load_policy(make_source("mistral"))
    with pytest.raises(ConfigError, match="mistral models cannot be cut into stages"):
        cut_to_stage(model, 0, 2)
