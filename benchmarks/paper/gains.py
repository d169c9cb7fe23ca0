"""The paper's speed-ups: which two rows make one, and both as published and as predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compared import Scene
from published import cells

Pairs = Mapping[tuple[str, int], tuple[str, str]]
"""By model and devices the row of a placement and that of its baseline."""

PUBLISHED: Final[Pairs] = {
    ("llama-33b", 32): ("flex-t2-003", "flex-t1-023"),
    ("llama-65b", 32): ("flex-t2-004", "flex-t1-024"),
    ("llama-33b", 128): ("flex-t2-007", "flex-t2-005"),
    ("llama-65b", 128): ("flex-t2-008", "flex-t2-006"),
}
PUBLISHED_INTERLEAVED_1: Final[Pairs] = {
    ("llama-7b", 8): ("flex-t1-005", "flex-t1-001"),
    ("llama-13b", 8): ("flex-t1-006", "flex-t1-002"),
    ("llama-7b", 32): ("flex-t1-025", "flex-t1-021"),
    ("llama-13b", 32): ("flex-t1-026", "flex-t1-022"),
}
PUBLISHED_INTERLEAVED_2: Final[Pairs] = {
    ("llama-7b", 16): ("flex-t1-017", "flex-t1-009"),
    ("llama-13b", 16): ("flex-t1-018", "flex-t1-010"),
    ("llama-33b", 16): ("flex-t1-019", "flex-t1-011"),
    ("llama-65b", 16): ("flex-t1-020", "flex-t1-012"),
}
PUBLISHED_SHARED: Final[Pairs] = {
    ("llama-7b", 8): ("flex-t5-002", "flex-t5-001"),
    ("llama-7b", 32): ("flex-t5-006", "flex-t5-005"),
    ("llama-13b", 8): ("flex-t5-008", "flex-t5-007"),
    ("llama-13b", 32): ("flex-t5-010", "flex-t5-009"),
}


@dataclass(frozen=True, slots=True)
class Gain:
    """One speed-up."""

    published: float
    predicted: float
    """By the paper's own count: the largest batch that fits each, scoring left out."""


def gain(pairs: Pairs, scene: Scene) -> Gain:
    """Returns the speed-up that the paper shows for a model on so many devices."""
    own, other = (cells()[identity] for identity in pairs[scene.model, scene.devices])
    return Gain(own.published / other.published, own.simulated / other.simulated)
