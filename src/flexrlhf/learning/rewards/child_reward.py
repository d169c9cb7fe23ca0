"""Rewards that judge an answer in a child process, which may hang or crash over it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from flexrlhf.core.plugins import require_package
from flexrlhf.learning.data.child_process import ChildDied, ChildProcess
from flexrlhf.learning.data.experience import Prompt, Sample

_UNREADABLE: Final = 0.0
"""What an answer gets that the child does not survive, or does not judge before its deadline."""


class ChildReward(ABC):
    """Asks a child process about each answer.

    Args:
        weight: factor in the total.
        deadline_s: seconds for one answer.

    Raises:
        EngineMissing: the package that judges is not installed.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """The import name of the package that judges."""
    program: ClassVar[str]
    """The child's module; it gets the question and the answer's text, and returns a number or None
    where it has no opinion."""

    def __init__(self, *, weight: float = 1.0, deadline_s: float = 5.0) -> None:
        require_package(self.package, needed_by=f"The reward {self.name!r}")
        self.weight = weight
        self._child = ChildProcess(self.program, str(deadline_s))

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See `Reward`."""
        for prompt in prompts:
            self._question(prompt)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Returns one score per sample, nan where the judge has no opinion.

        Raises:
            DataError: a row lacks a column.
        """
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float:
        try:
            score = self._child.ask((*self._question(sample.prompt), sample.text))
        except ChildDied:
            return _UNREADABLE
        return math.nan if score is None else score

    @abstractmethod
    def _question(self, prompt: Prompt) -> tuple[Any, ...]:
        """Returns what the child must know of the prompt.

        Raises:
            DataError: its row lacks a column.
        """
