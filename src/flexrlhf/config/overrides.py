"""Values from the command line, `--set a.b=c`, put into a config document.

A list entry is named by its number, a stage also by its name: `stages.sft.training.iterations=5`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from flexrlhf.config.problems import Problem, config_error, shown
from flexrlhf.config.yaml_text import parse_yaml
from flexrlhf.core.errors import ConfigError


def apply_overrides(document: Any, overrides: Sequence[str]) -> Any:
    """Returns a copy of a document with every override set, later ones winning.

    Args:
        document: what the YAML file holds.
        overrides: texts `KEY=VALUE`; the value is read as YAML, nothing is null.

    Raises:
        ConfigError: an override cannot be set; lists all that cannot.
    """
    changed = copy.deepcopy(document)
    problems: list[Problem] = []
    for override in overrides:
        try:
            _apply(changed, override)
        except ConfigError as error:
            problems.append(Problem(f"--set {override}", f": {error.wrong}", error.right))
    if problems:
        raise config_error("command line", problems)
    return changed


def _apply(document: Any, override: str) -> None:
    name, equals, text = override.partition("=")
    parts = [part.strip() for part in name.split(".")]
    if not equals or not all(parts):
        raise ConfigError("not of the form KEY=VALUE.", "Example: --set training.iterations=5.")
    value = parse_yaml(text, "its value")
    _refuse_hidden(document, parts)
    holder: Any = document
    for position, part in enumerate(parts[:-1]):
        holder = _step_into(holder, part, ".".join(parts[: position + 1]))
    holder[_key(holder, parts[-1], name)] = value


def _step_into(holder: Any, part: str, path: str) -> Any:
    """Returns the section or list under `part`; `auto`, null and nothing become a section."""
    key = _key(holder, part, path)
    below = holder.get(key) if isinstance(holder, dict) else holder[key]
    if below is None or below == "auto":
        below = {}
        holder[key] = below
    if not isinstance(below, dict | list):
        raise ConfigError(f"{path} is {shown(below)}, which has no keys.", "Set it as a whole.")
    return below


def _key(holder: Any, part: str, path: str) -> Any:
    return _index(holder, part, path) if isinstance(holder, list) else part


def _index(entries: list[Any], part: str, path: str) -> int:
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    if part in names and len(names) == len(entries):
        return names.index(part)
    known = [str(name) for name in names if name is not None] or [str(len(entries) - 1)]
    right = f"0 to {len(entries) - 1}, or a name: {', '.join(known)}." if entries else ""
    raise ConfigError(f"{path}: the list has no entry {part!r}.", right)


def _refuse_hidden(document: Any, parts: Sequence[str]) -> None:
    """Refuses a key of the top level that stages give themselves, as it would change nothing."""
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, list) or parts[0] == "stages":
        return
    key = ".".join(parts)
    hiding = [
        str(stage.get("name", position))
        for position, stage in enumerate(stages)
        if isinstance(stage, dict) and _gives(stage, parts)
    ]
    if hiding:
        raise ConfigError(
            f"the stages {', '.join(hiding)} give {key} themselves, so this would not reach them.",
            f"Write --set stages.{hiding[0]}.{key}=... for each stage that is meant.",
        )


def _gives(section: Any, parts: Sequence[str]) -> bool:
    for part in parts:
        if not isinstance(section, dict) or part not in section:
            return False
        section = section[part]
    return True
