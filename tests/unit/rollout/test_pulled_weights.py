"""An engine of its own takes a version from a weight store, whole, and generates with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import StaleWeights
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.rollout.actor_copy import empty_copy
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Request, Sampling
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore

SAMPLING = Sampling(max_new_tokens=8, seed=4)
REQUESTS = [Request((5, 6, 7), (0, 1, 2)), Request((8,), (3, 4))]


def tiny(seed: int) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=29,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=32,
        initializer_range=0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).double()


def test_a_pulled_version_is_what_the_engine_generates_with() -> None:
    actor, store = tiny(0), WeightStore()
    store.publish("actor", 5, whole_shards(actor))
    copy = empty_copy(actor, device=torch.device("cpu"))
    engine = build_engine("native", copy, shares_weights=False, has_weights=False)

    staged = pull(
        "actor",
        None,
        engine.targets(),
        ["here"],
        lambda _address, key, query: store.handle(key, query),
    )
    with pytest.raises(StaleWeights, match="none in it"):
        engine.generate(REQUESTS, SAMPLING)  # staging is not installing
    receipt = engine.install(staged.version, staged.install)

    assert receipt.source_checksum == receipt.installed_checksum
    assert receipt.num_tied_names == 1
    answers = engine.generate(REQUESTS, SAMPLING)
    expected = build_engine("native", actor, weight_version=5).generate(REQUESTS, SAMPLING)
    assert answers == expected
    assert copy.lm_head.weight is copy.model.embed_tokens.weight
