"""Answers of the model that a run kept in samples.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexrlhf.report.run_files import read_json_lines


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model to one prompt."""

    iteration: int
    kind: str
    """`train` or `evaluation`."""
    prompt: str
    response: str
    reward: float | None
    """None where it was not scored."""
    reward_parts: Mapping[str, float]
    finished: bool
    """False where the answer was cut at the largest allowed length."""
    response_tokens: int | None


def read_answers(path: Path, notes: list[str]) -> tuple[Answer, ...]:
    """Reads samples.jsonl; a line without prompt, response or iteration is left out with a note."""
    answers: list[Answer] = []
    for row in read_json_lines(path, notes):
        try:
            answers.append(_answer(row))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            notes.append(f"{path.name}: a line that is not a sample was left out.")
    return tuple(answers)


def _answer(row: Mapping[str, Any]) -> Answer:
    tokens = row.get("response_tokens")
    return Answer(
        iteration=int(row["iteration"]),
        kind=str(row.get("kind", "train")),
        prompt=str(row["prompt"]),
        response=str(row["response"]),
        reward=_finite(row.get("reward")),
        reward_parts={
            str(name): part
            for name, value in (row.get("reward_parts") or {}).items()
            if (part := _finite(value)) is not None
        },
        finished=bool(row.get("finished", True)),
        response_tokens=None if tokens is None else int(tokens),
    )


def _finite(value: Any) -> float | None:
    """The number, or None where there is none: an answer that was not scored has NaN."""
    return float(value) if value is not None and math.isfinite(value) else None
