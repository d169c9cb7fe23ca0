"""Models in float64 are not rounded to float32 anywhere on the way."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.skeleton import policy_skeleton


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_change_in_the_sixteenth_digit_stays_there(make_source, family):
    model = load_policy(make_source(family))
    embedded = model.get_input_embeddings()(torch.arange(3, 20)[None])
    noise = torch.randn(embedded.shape, generator=torch.Generator().manual_seed(0)).double()
    moved = embedded * (1 + 1e-15 * noise)
    found, other = (model(inputs_embeds=inputs).logits for inputs in (embedded, moved))
    assert (found - other).abs().max() < 1e-12


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_norms_are_those_of_torch(make_source, family):
    model = load_policy(make_source(family))
    hidden = torch.randn(2, 5, model.config.hidden_size, dtype=torch.float64)
    norm = model.model.layers[0].input_layernorm
    with torch.no_grad():
        norm.weight.add_(torch.randn(norm.weight.shape, dtype=torch.float64))
    expected = torch.nn.functional.rms_norm(
        hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon
    )
    torch.testing.assert_close(norm(hidden), expected, rtol=1e-14, atol=1e-14)


def test_other_types_keep_the_norms_of_transformers(make_source):
    model = load_policy(make_source("llama", dtype="float32"))
    assert not hasattr(model.model.norm, "is_exact")


def test_a_model_that_is_loaded_in_parts_has_them_too(make_source):
    skeleton = policy_skeleton(make_source("llama"))
    assert skeleton is not None
    assert hasattr(skeleton.model.model.norm, "is_exact")
