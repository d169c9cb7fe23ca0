"""Prompts of a job that only generates: every iteration has its own, so that none is remembered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def prompt_batches(given: dict[str, Any]) -> Iterator[list[list[int]]]:
    """Yields the tokens of an iteration's prompts.

    Raises:
        SystemExit: there are no more; a run has fewer turns.
    """
    file = Path(given["folder"]) / "prompts.json"
    yield from json.loads(file.read_text(encoding="utf-8"))
    raise SystemExit("There are no more prompts.")
