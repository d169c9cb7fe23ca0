"""A reward function of the user's as one part of the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.rewards.conventions import convention_of
from flexrlhf.learning.rewards.user_function import find_function


class FunctionReward:
    """Calls a function written for TRL, OpenRLHF or verl.

    Args:
        path: `path/to/file.py:function` or `package.module:function`.
        weight: factor in the total.
        options: further keyword arguments of every call.

    Raises:
        ConfigError: the function is not there, or its parameters are those of no framework.
    """

    def __init__(
        self, path: str, *, weight: float = 1.0, options: Mapping[str, Any] | None = None
    ) -> None:
        self._function = find_function(path, options)
        self._convention = convention_of(self._function)
        self.name = self._function.name
        self.weight = weight

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See `Reward`."""
        self._convention.check(self._function, prompts)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Returns one score per sample, nan where the function returned None.

        Raises:
            DataError: a column is missing, or the function raised an error, returned too few or
                too many rewards, or one that is no finite number.
        """
        return self._convention.call(self._function, samples) if samples else []
