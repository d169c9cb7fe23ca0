"""Whether and how an engine speculates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from flexrlhf.core.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Speculation:
    """Tokens are proposed out of the text before, or by a smaller model."""

    most_proposed: int
    """Tokens for an answer in one step, at least 1."""
    draft: nn.Module | None = None
    """A causal language model with the vocabulary of the large one, whole on the same device; None:
    see `PromptLookup`."""


def check_speculation(
    speculation: Speculation,
    model: nn.Module,
    *,
    engine: str,
    speculates: bool,
    unsupported_reason: Callable[[nn.Module], str | None],
) -> None:
    """Checks that an engine can speculate so.

    Args:
        speculation: what is asked for.
        model: that generates.
        engine: its name.
        speculates: whether it can at all.
        unsupported_reason: says why the engine cannot run a model, or None.

    Raises:
        ConfigError: it cannot.
    """
    if not speculates:
        raise ConfigError(
            f"The {engine} engine does not speculate.",
            "Speculation needs the native engine, and a model that it runs.",
            "Set rollout.speculation: none, or choose such a model.",
        )
    draft = speculation.draft
    if draft is None:
        return
    reason = unsupported_reason(draft)
    if reason is not None:
        raise ConfigError(
            f"The {engine} engine cannot run the draft model: {reason}.",
            "It proposes tokens in the same engine.",
            "Choose another rollout.draft_model.",
        )
    mine: Any = model.config
    its: Any = draft.config
    if mine.vocab_size != its.vocab_size:
        raise ConfigError(
            f"The draft model knows {its.vocab_size} tokens, the actor {mine.vocab_size}.",
            "A token must be the same for both.",
            "Choose a draft model of the actor's family.",
        )
