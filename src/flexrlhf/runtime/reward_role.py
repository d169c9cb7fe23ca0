"""The reward role: a neural reward model, reward functions, or several of them together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from flexrlhf.config.reward import Rewards
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.rewards.catalogue import load_reward
from flexrlhf.learning.rewards.combination import combine
from flexrlhf.learning.rewards.protocol import Reward
from flexrlhf.learning.scoring.passes import score_rewards


def reward_functions(section: Rewards) -> list[Reward]:
    """Loads the reward functions of a config.

    Raises:
        ConfigError: one cannot be had, or two have the same name.
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
    return rewards


class RewardRole:
    """Scores answers with every part and writes total and breakdown into the samples.

    Args:
        model: the neural reward model, or None.
        model_weight: its weight in the total.
        functions: the other parts.
        max_tokens: token budget of a scoring chunk.
    """

    def __init__(
        self,
        model: nn.Module | None,
        model_weight: float,
        functions: Sequence[Reward],
        *,
        max_tokens: int,
    ) -> None:
        self._model = model
        self._model_weight = model_weight
        self._functions = functions
        self._max_tokens = max_tokens

    def score(self, samples: Sequence[Sample]) -> None:
        """Fills `reward` and `reward_parts` of every sample."""
        parts = {
            function.name: (function.weight, function.score(samples))
            for function in self._functions
        }
        if self._model is not None:
            scores = score_rewards(self._model, samples, max_tokens=self._max_tokens)
            parts["model"] = (self._model_weight, scores)
        totals, breakdown = combine(parts)
        for sample, total, shares in zip(samples, totals, breakdown, strict=True):
            sample.reward = total
            sample.reward_parts = dict(shares)
