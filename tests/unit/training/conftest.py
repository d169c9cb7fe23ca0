"""Tiny float64 models, and samples whose lengths all differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_shared_actor_critic
from flexrlhf.learning.models.source import ModelSource

VOCABULARY = 29
LENGTHS = (9, 14, 5, 12, 7, 10)
MAKERS = {"policy": load_policy, "scorer": load_scorer, "shared": load_shared_actor_critic}


@pytest.fixture
def make_model() -> Callable[..., nn.Module]:
    """Makes a `policy` (with tied weights), a `scorer` or a `shared` actor-critic."""

    def make(
        kind: str = "policy", *, dtype: str = "float64", seed: int = 0, width: int = 16
    ) -> nn.Module:
        architecture = {
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": width,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
            "tie_word_embeddings": True,
        }
        return MAKERS[kind](ModelSource(architecture=architecture, dtype=dtype, seed=seed))

    return make


@pytest.fixture
def samples() -> list[Sample]:
    """Six answers; their fields are noise of the size that training sees."""
    generator = torch.Generator().manual_seed(3)

    def noise(length: int) -> Tensor:
        return torch.randn(length, generator=generator, dtype=torch.float64)

    made = []
    for number, length in enumerate(LENGTHS):
        tokens = torch.randint(VOCABULARY, (length,), generator=generator)
        num_prompt = 1 + length // 3
        mask = torch.arange(length) >= num_prompt
        fields = {
            "old_logprobs": -3.0 + noise(length),
            "reference_logprobs": -3.0 + noise(length),
            "advantages": noise(length),
            "values": noise(length),
            "returns": noise(length),
        }
        made.append(
            Sample(
                sample_id=100 + number,
                prompt=Prompt(number, tuple(tokens[:num_prompt].tolist()), ""),
                tokens=tokens,
                num_prompt_tokens=num_prompt,
                mask=mask,
                fields={name: values * mask for name, values in fields.items()},
            )
        )
    return made
