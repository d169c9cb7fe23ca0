"""Gradient checkpointing computes layers twice and gives the same gradients."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.forward import shared_outputs
from flexrlhf.learning.models.gradient_checkpointing import enable_gradient_checkpointing
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy


def test_gradients_are_the_same_from_layers_run_twice(family, make_source, make_batch):
    batch = make_batch()
    gradients, runs = [], []
    for checkpointed in (False, True):
        model = SharedActorCritic(load_policy(make_source(family)))
        if checkpointed:
            enable_gradient_checkpointing(model)
        calls = []
        first_mlp = next(m for m in model.modules() if type(m).__name__.endswith("MLP"))
        first_mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        outputs = shared_outputs(model, batch)
        (outputs.logprobs.sum() + outputs.values.sum()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        runs.append(len(calls))
    assert runs == [1, 2]
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=0, atol=0)


def test_frozen_models_still_run(make_source, make_batch):
    model = load_policy(make_source("llama"))
    enable_gradient_checkpointing(model)
    model.requires_grad_(False)
    embedded = model.get_input_embeddings()(make_batch().tokens)
    assert not embedded.requires_grad


def test_family_without_support_is_refused(make_source):
    model = load_policy(make_source("llama"))
    model.supports_gradient_checkpointing = False
    with pytest.raises(ConfigError, match="does not support gradient checkpointing"):
        enable_gradient_checkpointing(model)
