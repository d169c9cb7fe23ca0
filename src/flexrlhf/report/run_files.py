"""Reads a file that may be missing, torn or damaged, and says what it left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flexrlhf.config.yaml_text import parse_yaml
from flexrlhf.core.errors import ConfigError


def read_json_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Returns the JSON objects of `path`, one a line; every line left out adds a note.

    A run that is killed while it writes leaves a last line without an end: it is left out too.
    """
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _json_object(line)
        if row is not None:
            rows.append(row)
        elif number == len(lines):
            notes.append(f"{path.name}: the last line is cut off and was left out.")
        else:
            notes.append(f"{path.name}: line {number} is not a JSON object and was left out.")
    return rows


def read_json(path: Path, notes: list[str]) -> dict[str, Any]:
    """Returns the JSON object in `path`; empty, with a note, where it cannot be read."""
    if not path.is_file():
        return {}
    document = _json_object(path.read_bytes())
    if document is None:
        notes.append(f"{path.name} is not a whole JSON object and was left out.")
        return {}
    return document


def read_yaml(path: Path, notes: list[str]) -> dict[str, Any]:
    """Returns the YAML mapping in `path`; empty, with a note, where it cannot be read."""
    try:
        document = parse_yaml(read_text(path), path.name)
    except ConfigError:
        document = False
    if document is None:
        return {}
    if not isinstance(document, dict):
        notes.append(f"{path.name} is not a YAML mapping and was left out.")
        return {}
    return document


def read_text(path: Path) -> str:
    """Returns the text of `path`; empty where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
