"""What a prediction takes for granted, in the order in which it does."""

from __future__ import annotations

from typing import TypeVar

_Value = TypeVar("_Value")


class Assumptions:
    """Collects sentences of the form `gpus_per_node=8 (usual)`."""

    def __init__(self) -> None:
        self._taken: dict[str, None] = {}

    def take(self, name: str, value: _Value, why: str) -> _Value:
        """Notes a value that is not stated, and returns it."""
        self.note(f"{name}={_short(value)} ({why})")
        return value

    def note(self, sentence: str) -> None:
        """Notes anything else; the same words are kept once."""
        self._taken[sentence] = None

    def __str__(self) -> str:
        return "; ".join(self._taken)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
