"""The reward role: a neural reward model, reward functions, or several of them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from torch import nn

from flexrlhf.config.reward import Rewards
from flexrlhf.core.errors import ConfigError, RunFailed
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.rewards.catalogue import load_reward
from flexrlhf.learning.rewards.combination import combine
from flexrlhf.learning.rewards.protocol import Reward
from flexrlhf.learning.scoring.passes import score_rewards

MODEL_PART: Final = "model"
"""Name of the reward model's part."""
_TAKEN: Final = frozenset({MODEL_PART, "mean", "std"})
"""Metrics `reward/NAME` that are not a function's."""


def reward_functions(section: Rewards) -> list[Reward]:
    """Loads the reward functions of a config.

    Raises:
        ConfigError: one cannot be had, or its name is taken.
    """
    rewards = [
        load_reward(
            function.name or function.path or "", weight=function.weight, options=function.options
        )
        for function in section.functions
    ]
    names = [reward.name for reward in rewards]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(
            f"reward.functions has {', '.join(sorted(twice))} more than once.",
            "Each part of the reward has a name of its own in the metrics.",
            "Rename a function, or remove the repetition.",
        )
    taken = _TAKEN.intersection(names)
    if taken:
        raise ConfigError(
            f"A function of reward.functions is called {', '.join(sorted(taken))}.",
            f"These names are taken in the metrics: {', '.join(sorted(_TAKEN))}.",
            "Rename the function.",
        )
    return rewards


class RewardRole:
    """Scores answers with every part and writes total and breakdown into the samples.

    Args:
        model: the neural reward model, or None.
        model_weight: its weight in the total.
        functions: the other parts.
        max_tokens: token budget of a scoring chunk.
        context: makes the context that the model runs in.
    """

    def __init__(
        self,
        model: nn.Module | ParallelModel | None,
        model_weight: float,
        functions: Sequence[Reward],
        *,
        max_tokens: int,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._model = model
        self._model_weight = model_weight
        self._functions = functions
        self._max_tokens = max_tokens
        self._context = context

    def score(self, samples: Sequence[Sample]) -> None:
        """Fills `reward` and `reward_parts` of every sample.

        Raises:
            RunFailed: a score of the model is not finite.
            DataError: a function failed, or to some sample no part applies.
        """
        parts = {
            function.name: (function.weight, function.score(samples) if samples else [])
            for function in self._functions
        }
        if self._model is not None:
            parts[MODEL_PART] = (self._model_weight, self._model_scores(self._model, samples))
        totals, breakdown = combine(parts)
        for sample, total, shares in zip(samples, totals, breakdown, strict=True):
            sample.reward = total
            sample.reward_parts = dict(shares)

    def _model_scores(
        self, model: nn.Module | ParallelModel, samples: Sequence[Sample]
    ) -> list[float]:
        """Returns the model's scores; nan would say that the model does not apply to a sample."""
        with self._context():
            scores = score_rewards(model, samples, max_tokens=self._max_tokens)
        for sample, score in zip(samples, scores, strict=True):
            if not math.isfinite(score):
                raise RunFailed(
                    f"The reward model gives {score} to sample {sample.sample_id}.",
                    "A score is a finite number.",
                    "Look at the weights of model.reward, and at its training.",
                )
        return scores
