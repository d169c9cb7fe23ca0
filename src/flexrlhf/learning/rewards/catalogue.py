"""The rewards that a config can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.plugins import load_plugin
from flexrlhf.learning.rewards.functions import FunctionReward
from flexrlhf.learning.rewards.protocol import Reward

BUILT_IN: Final[dict[str, str]] = {
    "math": "flexrlhf.learning.rewards.maths:MathReward",
    "reasoning_gym": "flexrlhf.learning.rewards.reasoning_gym_reward:ReasoningGymReward",
}


def load_reward(
    source: str, *, weight: float = 1.0, options: Mapping[str, Any] | None = None
) -> Reward:
    """Returns the reward that `source` names.

    Args:
        source: a name in `BUILT_IN`, or a function's path, which has a colon.
        weight: factor in the total.
        options: keyword arguments: of a built-in reward's class, or of every call of a function.

    Raises:
        ConfigError: there is no such reward, or it does not take these options.
        EngineMissing: a package that it needs is not installed.
    """
    if ":" in source:
        return FunctionReward(source, weight=weight, options=options)
    reward = load_plugin("The reward", BUILT_IN, source)
    try:
        return reward(weight=weight, **(options or {}))
    except TypeError as error:
        raise ConfigError(
            f"The reward {source!r} does not take the options {dict(options or {})}.",
            f"{error}.",
            "Correct or remove them.",
        ) from error
