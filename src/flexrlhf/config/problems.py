"""Problem: one thing that is wrong with a config, and how pydantic's findings become such.

What would be right is said from the schema, so that every field gets a precise answer without a
message of its own. Keys and values that are planned but not built get their reason here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flexrlhf.config.schema_tree import child, describe, fields, is_free, json_schema, words
from flexrlhf.core.errors import ConfigError, nearest

Key = tuple[str | int, ...]

_RANGE_ERRORS: Final = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config."""

    key: str
    """Dotted key."""
    wrong: str
    """What is wrong with it, as a sentence that may begin with the value."""
    right: str = ""
    """What would be right."""
    concerns: tuple[str, ...] = ()
    """Other keys whose values led to the finding."""

    def __str__(self) -> str:
        return f"{self.key}{self.wrong} {self.right}".rstrip()


def mistake(key: str, value: object, wrong: str, right: str = "", *concerns: str) -> Problem:
    """Returns the problem `KEY = VALUE: WRONG RIGHT`."""
    return Problem(key, f" = {shown(value)}: {wrong}", right, concerns)


def absence(key: str, wrong: str, right: str = "", *concerns: str) -> Problem:
    """Returns the problem `KEY: WRONG RIGHT`, for keys that have no value to show."""
    return Problem(key, f": {wrong}", right, concerns)


def config_error(source: str, problems: Sequence[Problem]) -> ConfigError:
    """Returns one error that lists all problems of a file."""
    lines = list(dict.fromkeys(str(problem) for problem in problems))
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return ConfigError(
        f"{source}: {count}.",
        "\n  ".join(f"- {line}" for line in lines),
        "Every key is described in docs/reference/config.md.",
    )


def shown(value: object) -> str:
    """Returns a value as YAML would have it, cut at 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def dotted(key: Iterable[str | int]) -> str:
    """Returns a key as users write it: `reward.functions.0.weight`."""
    return ".".join(str(part) for part in key)


def schema_problems(error: ValidationError) -> dict[Key, Problem]:
    """Translates pydantic's findings, one problem for each key.

    A value that fits none of a field's alternatives is one problem, and a section with a wrong key
    inside is not also reported as a whole.
    """
    found: dict[Key, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False, include_context=False):
        found.setdefault(_key_of(details), []).append(details)
    return {
        key: _problem_at(key, details)
        for key, details in found.items()
        if not any(other != key and other[: len(key)] == key for other in found)
    }


def _key_of(details: ErrorDetails) -> Key:
    """Drops from a location what names an alternative of a union rather than a key."""
    key: list[str | int] = []
    node: dict[str, Any] = json_schema()
    last = len(details["loc"]) - 1
    for position, part in enumerate(details["loc"]):
        if is_free(node):
            break
        below = child(node, part)
        if below is not None:
            key.append(part)
            node = below
        elif position == last and details["type"] in ("extra_forbidden", "invalid_key"):
            key.append(part)
    return tuple(key)


def _problem_at(key: Key, findings: Sequence[ErrorDetails]) -> Problem:
    name, value = dotted(key), findings[0]["input"]
    kinds = {details["type"] for details in findings}
    if kinds & {"extra_forbidden", "invalid_key"}:
        return absence(name, "unknown key.", _known_names(key))
    right = accepted(key)
    if "missing" in kinds:
        return absence(name, "missing.", right)
    if kinds & _RANGE_ERRORS:
        return mistake(name, value, "out of range.", right)
    similar = nearest(value, words(_node_at(key))) if isinstance(value, str) else ""
    return mistake(name, value, "not accepted here.", " ".join(filter(None, (right, similar))))


def accepted(key: Key) -> str:
    """Returns what a key takes, as in `Right: auto or a number above 0`."""
    node = _node_at(key)
    return f"Right: {describe(node)}." if node else ""


def _known_names(key: Key) -> str:
    known = sorted(fields(_node_at(key[:-1])))
    return nearest(str(key[-1]), known) or f"Known here: {', '.join(known)}."


def _node_at(key: Key) -> dict[str, Any]:
    node = json_schema()
    for part in key:
        node = child(node, part) or {}
    return node
