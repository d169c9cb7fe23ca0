"""Section `reward`: what a good answer is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flexrlhf.config.section import Number, Options, Section, Text


class RewardFunction(Section):
    """One function that scores answers: a built-in `name`, or the `path` of your own."""

    name: Literal["math", "reasoning_gym"] | None = None
    """Built in: `math` compares with the row's answer, `reasoning_gym` asks the task's scorer."""
    path: Text | None = None
    """`FILE.py:FUNCTION`; called as f(prompts, completions, **columns) -> list of numbers."""
    weight: Number = 1.0
    """Factor of its score in the reward."""
    options: Options = Field(default={})
    """Passed to the function as keyword arguments."""


class Rewards(Section):
    """The reward is the weighted sum of the functions and of the reward model."""

    functions: tuple[RewardFunction, ...] = ()
    """Reward functions, besides or instead of `model.reward`."""
    model_weight: Number = 1.0
    """Factor of the reward model's score."""
