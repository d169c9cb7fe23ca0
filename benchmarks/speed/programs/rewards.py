"""What training jobs reward; a function that costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def variety(completions: Sequence[str], **columns: Any) -> list[float]:
    """Returns the share of words of each answer that did not occur in it before."""
    del columns
    return [len(set(text.split())) / max(1, len(text.split())) for text in completions]
