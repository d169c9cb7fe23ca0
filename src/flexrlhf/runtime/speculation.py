"""Speculative generation in a run: from its config to the engine, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.loading import load_policy, load_tokenizer
from flexrlhf.learning.models.sizes import max_positions
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.vocabulary import check_vocabularies
from flexrlhf.learning.rollout.protocol import RolloutEngine
from flexrlhf.learning.rollout.speculation.settings import Speculation
from flexrlhf.runtime.measurements import Measurement, Measurements


def speculation_of(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    reference: Callable[[], nn.Module],
    *,
    tensor_parallel: int = 1,
) -> Speculation | None:
    """Returns how the engine of a run speculates; None where it does not.

    Args:
        config: a resolved run.
        tokenizer: of the actor.
        device: of the engine.
        reference: gives the reference on this device, whole.
        tensor_parallel: processes that share the engine.

    Raises:
        ConfigError: the draft model does not load, or does not fit the actor.
    """
    rollout = config.rollout
    if rollout.speculation in ("none", "auto"):  # auto that no plan has replaced
        return None
    if rollout.draft_model is None:
        return Speculation(rollout.speculative_tokens)
    if tensor_parallel > 1:
        raise ConfigError(
            f"A draft model would propose in {tensor_parallel} processes that share one actor.",
            "They must propose the same, which rounding does not promise.",
            "Set rollout.speculation: prompt_lookup, or generate without tensor parallelism.",
        )
    if rollout.draft_model == "reference":
        draft = reference()
    else:
        draft = _load_draft(config, rollout.draft_model, tokenizer).to(device)
    _check_length(draft, config.data.max_prompt_tokens + rollout.max_new_tokens)
    return Speculation(rollout.speculative_tokens, draft)


def _load_draft(config: RunConfig, path: str, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    assert config.model.actor is not None, "algorithms that generate have an actor"
    source = ModelSource(path=path, dtype=config.model.actor.dtype)
    check_vocabularies({"actor": tokenizer, "rollout.draft_model": load_tokenizer(source)})
    return load_policy(source).requires_grad_(requires_grad=False)


def _check_length(draft: nn.Module, longest: int) -> None:
    limit = max_positions(draft)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"Sequences may have {longest} tokens, but the draft model reads at most {limit}.",
            "It reads what the actor reads.",
            "Choose a draft model with more positions, or lower rollout.max_new_tokens.",
        )


def speculation_measurements(engine: RolloutEngine) -> Measurements:
    """Returns what was proposed and drawn since the last call; nothing where nothing was."""
    counts = engine.take_counts()
    if not counts.steps:
        return {}
    steps = float(counts.steps)
    measured = {
        "speculation/tokens_per_step": Measurement(counts.tokens / steps, steps),
        "speculation/proposed_per_step": Measurement(counts.proposed / steps, steps),
    }
    if counts.verified:
        measured["speculation/acceptance"] = Measurement(
            counts.accepted / counts.verified, float(counts.verified)
        )
    return measured
