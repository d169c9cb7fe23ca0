"""Which answers of the first and of the last recorded iteration stand side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flexrlhf.report.answers import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers to a prompt in the first iteration beside answers to it, or to a like one, later."""

    first: tuple[Answer, ...]
    last: tuple[Answer, ...]

    @property
    def has_same_prompt(self) -> bool:
        """False where the last iteration did not have the prompt, so that a like one was taken."""
        return self.first[0].prompt == self.last[0].prompt


def compare_answers(
    answers: Iterable[Answer], kind: str, *, num_prompts: int = 6, num_answers: int = 3
) -> list[Comparison]:
    """Returns answers of the first recorded iteration beside those of the last.

    Args:
        answers: of any iteration and kind.
        kind: `train` or `evaluation`; the others are left out.
        num_prompts: the most prompts compared.
        num_answers: the most answers taken to each prompt, of either iteration.

    Returns:
        Comparisons of the same prompt first, each part in the order of the first iteration; none
        when only one iteration was recorded.
    """
    chosen = [answer for answer in answers if answer.kind == kind]
    iterations = {answer.iteration for answer in chosen}
    if len(iterations) < 2:
        return []
    first = _by_prompt(answer for answer in chosen if answer.iteration == min(iterations))
    last = _by_prompt(answer for answer in chosen if answer.iteration == max(iterations))
    return [
        Comparison(tuple(first[one][:num_answers]), tuple(last[other][:num_answers]))
        for one, other in _partners(list(first), list(last))[:num_prompts]
    ]


def _by_prompt(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    grouped: dict[str, list[Answer]] = {}
    for answer in answers:
        grouped.setdefault(answer.prompt, []).append(answer)
    return grouped


def _partners(first: Sequence[str], last: Sequence[str]) -> list[tuple[str, str]]:
    """Each prompt with itself, then those without a partner with the most similar one left."""
    pairs = [(prompt, prompt) for prompt in first if prompt in last]
    left = [prompt for prompt in last if prompt not in first]
    for prompt in (prompt for prompt in first if prompt not in last):
        if not left:
            break
        nearest = max(left, key=lambda other: _likeness(prompt, other))
        left.remove(nearest)
        pairs.append((prompt, nearest))
    return pairs


def _likeness(one: str, other: str) -> float:
    """Words in both, of all words in either."""
    words, others = set(one.split()), set(other.split())
    return len(words & others) / max(1, len(words | others))
