"""Answers of the model that a run kept, and which of them stand side by side in the report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """An answer of the first recorded iteration beside one of the last."""

    first: Answer
    last: Answer

    @property
    def has_same_prompt(self) -> bool:
        """False where no common prompt was left and a like one was taken."""
        return self.first.prompt == self.last.prompt


def read_answers(path: Path, notes: list[str]) -> tuple[Answer, ...]:
    """Reads samples.jsonl; a line without prompt, response or iteration is left out with a note."""
    answers: list[Answer] = []
    for row in read_json_lines(path, notes):
        try:
            answers.append(_answer(row))
        except (KeyError, TypeError, ValueError):
            notes.append(f"{path.name}: a line that is not a sample was left out.")
    return tuple(answers)


def pair_answers(answers: Iterable[Answer], kind: str, *, limit: int = 8) -> list[AnswerPair]:
    """Pairs answers of the first recorded iteration with those of the last, same prompts first.

    Args:
        answers: of any iteration and kind.
        kind: `train` or `evaluation`; the others are left out.
        limit: the most pairs returned.

    Returns:
        Pairs in the order of the first iteration; none when only one iteration was recorded.
    """
    chosen = [answer for answer in answers if answer.kind == kind]
    iterations = {answer.iteration for answer in chosen}
    if len(iterations) < 2:
        return []
    first = [answer for answer in chosen if answer.iteration == min(iterations)]
    last = [answer for answer in chosen if answer.iteration == max(iterations)]
    pairs = _same_prompts(first, last)
    if len(pairs) < limit:
        pairs += _like_prompts(first, last, pairs)
    return pairs[:limit]


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


def _same_prompts(first: Sequence[Answer], last: Sequence[Answer]) -> list[AnswerPair]:
    """One pair per prompt first: else the answers to one prompt could fill the page."""
    later: dict[str, list[Answer]] = defaultdict(list)
    for answer in last:
        later[answer.prompt].append(answer)
    rounds: dict[str, int] = defaultdict(int)
    ranked: list[tuple[int, AnswerPair]] = []
    for answer in first:
        place = rounds[answer.prompt]
        if place < len(later[answer.prompt]):
            ranked.append((place, AnswerPair(answer, later[answer.prompt][place])))
            rounds[answer.prompt] += 1
    return [pair for _, pair in sorted(ranked, key=lambda entry: entry[0])]


def _like_prompts(
    first: Sequence[Answer], last: Sequence[Answer], taken: Sequence[AnswerPair]
) -> list[AnswerPair]:
    """Prompts without a partner, each with the most similar one that is left."""
    used = {pair.first.prompt for pair in taken}
    left = list({a.prompt: a for a in last if a.prompt not in used}.values())
    pairs: list[AnswerPair] = []
    for answer in {a.prompt: a for a in first if a.prompt not in used}.values():
        if not left:
            break
        nearest = max(left, key=lambda other: _likeness(answer.prompt, other.prompt))
        left.remove(nearest)
        pairs.append(AnswerPair(answer, nearest))
    return pairs


def _likeness(one: str, other: str) -> float:
    """Words in both, of all words in either."""
    words, others = set(one.split()), set(other.split())
    return len(words & others) / max(1, len(words | others))
