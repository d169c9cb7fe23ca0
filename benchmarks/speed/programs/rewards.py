"""What training jobs reward; a function that costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FIRST_HALF = 256
"""Words w2 to w255 are the first half of the tiny models' vocabulary."""


def variety(completions: Sequence[str], **columns: Any) -> list[float]:
    """Returns the share of words of each answer that did not occur in it before."""
    del columns
    return [len(set(text.split())) / max(1, len(text.split())) for text in completions]


def low_words(completions: Sequence[str], **columns: Any) -> list[float]:
    """Returns the share of words of each answer that come from the first half of the vocabulary."""
    del columns
    answers = [[int(word[1:]) for word in text.split() if word[0] == "w"] for text in completions]
    return [sum(word < _FIRST_HALF for word in words) / max(1, len(words)) for words in answers]
