"""One row of a case file, typed; what is not stated is absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flexrlhf.core.errors import DataError, nearest
from flexrlhf.planning.cases.vocabulary import (
    ALGORITHMS,
    DEVICE_COUNTS,
    METRICS,
    MODELS,
    NUMBERS,
    UNSTATED,
    WORDS,
)
from flexrlhf.planning.costs.shape_catalogue import SHAPES

_MOST: Final = 1e12
"""Nothing that the columns count is larger."""
MOST_DEVICES: Final = 65536
"""Devices that a case may have."""
_COUNTED_VARIANTS: Final = ("gpus_critic", "gpus_reference", "gpus_reward")
_MAY_BE_ZERO: Final = ("n_gpus_other", "zero_stage", "lora_rank", "prompt_tokens_mean")


class CaseRefused(Exception):
    """A row that says something which no list knows, or counts devices wrongly."""


@dataclass(frozen=True, slots=True)
class Case:
    """What one row states."""

    words: Mapping[str, str] = field(default_factory=dict[str, str])
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    variant: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def metric(self) -> str:
        """The metric asked for."""
        return self.words["metric"]

    def word(self, column: str) -> str | None:
        """Returns a word, None where it is not stated."""
        return self.words.get(column)

    def number(self, column: str) -> float | None:
        """Returns a number, None where it is not stated."""
        return self.numbers.get(column)

    def count(self, column: str, default: int = 1) -> int:
        """Returns a number as a count of at least 1."""
        return max(1, round(self.numbers.get(column, default)))

    def flag(self, column: str) -> bool | None:
        """Returns whether `yes` stands there, None where neither `yes` nor `no` does."""
        word = self.words.get(column)
        return None if word not in ("yes", "no") else word == "yes"

    def has_role(self, role: str) -> bool:
        """Whether a model column is filled, be it with `unstated`."""
        return f"{role}_model" in self.words


def case_of(row: Mapping[str, str], line: int) -> Case:
    """Returns the case that a row states.

    Args:
        row: columns and their text.
        line: of the file, for messages.

    Raises:
        CaseRefused: a metric, model or algorithm is in no list, or a device count is no positive
            whole number.
        DataError: another number is none, or is out of all range.
    """
    words = {column: text for column in WORDS if (text := _text(row, column)) not in ("", UNSTATED)}
    words |= {column: text for column in MODELS if (text := _text(row, column))}
    _check_words(words)
    variant = _variant_of(_text(row, "variant"))
    numbers: dict[str, float] = {}
    for column in DEVICE_COUNTS:
        if (text := _text(row, column)) not in ("", UNSTATED):
            numbers[column] = _device_count(column, text, line)
    for key in _COUNTED_VARIANTS:
        if key in variant:
            numbers[key] = _device_count(key, variant[key], line)
    for column in NUMBERS:
        if (text := _text(row, column)) not in ("", UNSTATED):
            numbers[column] = _number(column, text, line)
    return Case(words, numbers, variant)


def _text(row: Mapping[str, str], column: str) -> str:
    return (row.get(column) or "").strip()


def _check_words(words: Mapping[str, str]) -> None:
    if "metric" not in words:
        raise CaseRefused("no metric is asked for")
    known = {"metric": tuple(METRICS), "algorithm": ALGORITHMS}
    known |= dict.fromkeys(MODELS, (*SHAPES, UNSTATED))
    for column, names in known.items():
        word = words.get(column)
        if word is not None and word.lower() not in names:
            hint = nearest(word, names)
            raise CaseRefused(f"{column} {word!r} is not in the list. {hint}".rstrip())


def _variant_of(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _device_count(column: str, text: str, line: int) -> float:
    value = _parsed(text)
    least = 0 if column in _MAY_BE_ZERO else 1
    if value is None or not math.isfinite(value) or value != int(value) or value < least:
        raise CaseRefused(f"{column} = {text} is no positive whole number")
    if value > MOST_DEVICES:
        raise _absurd(column, text, line, f"at most {MOST_DEVICES} devices")
    return value


def _number(column: str, text: str, line: int) -> float:
    value = _parsed(text)
    is_positive = value is not None and (value > 0 or (value == 0 and column in _MAY_BE_ZERO))
    if value is None or not is_positive or not value <= _MOST:
        raise _absurd(column, text, line, f"a number above 0 and at most {_MOST:g}")
    return value


def _parsed(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _absurd(column: str, text: str, line: int, right: str) -> DataError:
    shown = text if len(text) <= 40 else text[:40] + "..."
    return DataError(
        f"Line {line} of the case file has {column} = {shown!r}.",
        f"It is {right}, or an empty cell, which is assumed.",
        "Correct the cell.",
    )
