"""Scores answers with a reasoning-gym task's own scorer; run as a program, in a child process.

Some scorers evaluate the answer as Python or as an expression: it may hang or harm the process in
which that happens. It imports neither torch nor the trainer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from reasoning_gym.utils import extract_answer

from flexrlhf.learning.data.child_process import serve
from flexrlhf.learning.data.reasoning_gym_rows import open_task

_SCORER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What scorers raise at answers that they cannot read."""


class ReasoningGymCheck:
    """Calls the scorers of tasks, each opened once per set of options."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def __call__(self, request: tuple[str, dict[str, Any], dict[str, Any], str]) -> float:
        """Returns the score of a text.

        Args:
            request: task, its options, the row's answer and metadata, and the text, whose answer
                stands between answer tags or is all of it.

        Raises:
            DataError: no task has this name, or it refuses its options.
        """
        task, options, entry, text = request
        scorer = self._opened(task, options)
        answer = extract_answer(text)
        try:
            score = float(scorer.score_answer(text.strip() if answer is None else answer, entry))
        except _SCORER_ERRORS:
            return 0.0
        return score if math.isfinite(score) else 0.0

    def _opened(self, task: str, options: Mapping[str, Any]) -> Any:
        key = repr((task, sorted(options.items())))
        if key not in self._tasks:
            self._tasks[key] = open_task(task, {**options, "seed": 0, "size": 1})
        return self._tasks[key]


if __name__ == "__main__":
    serve(ReasoningGymCheck(), deadline_s=float(sys.argv[1]))
