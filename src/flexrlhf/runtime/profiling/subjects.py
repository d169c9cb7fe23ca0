"""The small random models and samples that are measured; their sizes are those of no example."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.training.objectives import GlobalCounts, PolicyObjective
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer

VOCABULARY: Final = 64
_HEAD_WIDTH: Final = 32
_FIELDS: Final = ("old_logprobs", "advantages", "values", "reference_logprobs")


def ffn_of(width: int) -> int:
    """Returns the width inside a gated MLP: 8/3 of the hidden one, as Llama has it."""
    return 8 * -(-width // 3)


def architecture(width: int, layers: int) -> dict[str, Any]:
    """Returns the config of a Llama whose keys have half as many heads as its queries."""
    heads = width // _HEAD_WIDTH
    return {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": ffn_of(width),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }


def llama(width: int, layers: int, device: torch.device) -> nn.Module:
    """Returns a random Llama."""
    source = ModelSource(architecture=architecture(width, layers))
    return nn.Module.to(load_policy(source), device)


def layer_params(width: int) -> int:
    """Returns the matrix weights of a layer of `llama`."""
    heads = width // _HEAD_WIDTH
    keys = max(1, heads // 2) * _HEAD_WIDTH
    return 2 * width * width + 2 * width * keys + 3 * width * ffn_of(width)


def cache_values(width: int) -> int:
    """Returns the numbers that a token adds to the cache of a layer of `llama`."""
    return 2 * max(1, width // _HEAD_WIDTH // 2) * _HEAD_WIDTH


def samples(count: int, longest: int) -> list[Sample]:
    """Returns samples whose last token alone is trainable.

    Every other one is a token shorter: where nothing is padded, models leave their mask out.
    """
    made: list[Sample] = []
    for number in range(count):
        tokens = longest - number % 2
        mask_T = torch.zeros(tokens, dtype=torch.bool)
        mask_T[-1] = True
        tokens_T = (torch.arange(tokens) + number) % VOCABULARY
        prompt = Prompt(number, tuple(tokens_T[:-1].tolist()), "")
        sample = Sample(number, prompt, tokens_T, tokens - 1, mask_T)
        sample.fields = {name: torch.zeros(tokens) for name in _FIELDS}
        sample.reward = float(number % 2)
        made.append(sample)
    return made


def trainer(model: nn.Module) -> RoleTrainer:
    """Returns what trains a model as GRPO and PPO train their actor."""
    settings = OptimizerSettings(learning_rate=0.0, total_steps=1)
    return RoleTrainer("actor", OneDeviceBackend(model, settings), OBJECTIVE)


def counts(count: int) -> GlobalCounts:
    """Returns the counts of a mini-batch of so many `samples`."""
    return GlobalCounts(num_tokens=count, num_sequences=count, max_tokens=1)


OBJECTIVE: Final = PolicyObjective(
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=None,
    aggregation="token_mean",
    entropy_coef=0.0,
    kl_coef=0.0,
    kl_estimator="k3",
    temperature=1.0,
)
