"""What an engine keeps of sequences, as long as the weights are those that it was made with."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.families import CacheShape
from flexrlhf.learning.rollout.kept_prefixes import BLOCK_TOKENS, KeptPrefixes
from flexrlhf.learning.rollout.prompt_counts import PromptCounts


class PrefixKeeper:
    """Hands out what is kept, and drops it when weights or the form of keys have changed.

    Whoever still holds what was dropped finds it empty, and what they add to it is not kept.

    Args:
        most_tokens: that are kept, at most.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._steps = _optimizer_steps()
        self.counts = PromptCounts()
        self._weights: Hashable = None
        self._form: Hashable = None
        self._kept: KeptPrefixes | None = None

    def check(self, model: nn.Module, version: int) -> None:
        """Drops everything if the weights are not those of the last call.

        Args:
            model: whose tensors are looked at: their places, and how often PyTorch changed them;
                any step of an optimiser in this process counts as a change.
            version: that they are said to have.
        """
        weights = (version, self._steps.count, *_changes(model))
        if weights != self._weights:
            self.drop()
            self._weights = weights

    def kept(
        self, shape: CacheShape, *, dtype: torch.dtype, device: torch.device, family: type
    ) -> KeptPrefixes:
        """Returns what is kept in this form; packed weights, for one, order a key differently."""
        form = (shape, dtype, device, family)
        if self._kept is None or form != self._form:
            self.drop()
            self._form = form
            self._kept = KeptPrefixes(
                shape, most_tokens=self._most_tokens, dtype=dtype, device=device
            )
        return self._kept

    def drop(self) -> None:
        """Forgets everything, and gives the memory back."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def check_keeping(
    most_tokens: int, *, engine: str, keeps: bool, rounds: bool, is_split: bool
) -> None:
    """Checks that an engine can keep prefixes.

    Args:
        most_tokens: that it should keep; 0: none.
        engine: its name.
        keeps: whether it can at all.
        rounds: whether it multiplies by weights in int8.
        is_split: whether the model is a role's in several processes.

    Raises:
        ConfigError: it cannot.
    """
    if not most_tokens:
        return
    reason = None
    if not keeps:
        reason = f"the {engine} engine reads every prompt whole"
    elif rounds:
        reason = "rounding to int8 makes other answers of the last bits, which reading less changes"
    elif is_split:
        reason = "several processes share this model, whose answers must not depend on placement"
    elif most_tokens < BLOCK_TOKENS:
        reason = f"tokens are kept in blocks of {BLOCK_TOKENS}"
    if reason is not None:
        raise ConfigError(
            f"kept_prefix_tokens = {most_tokens} is not possible here: {reason}.",
            f"The native engine keeps {BLOCK_TOKENS} tokens and more, with weights as they are, "
            "on one device.",
            "Set rollout.kept_prefix_tokens: 0, or change what stands against it.",
        )


class _Steps:
    """How many steps the optimisers of this process took."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, *_: Any) -> None:
        self.count += 1


@cache
def _optimizer_steps() -> _Steps:
    """Returns the one counter; fused optimisers write without telling the tensors' own."""
    steps = _Steps()
    register_optimizer_step_post_hook(steps.add)
    return steps


def _changes(model: nn.Module) -> list[Hashable]:
    tensors = (*model.parameters(), *model.buffers())
    if any(tensor.is_inference() for tensor in tensors):
        return [object()]  # nobody counts the changes of these: never the same as before
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
