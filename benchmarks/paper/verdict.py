"""How a criticism is judged: the cases in which the simulated numbers bear it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baselines import Way
from compared import Scene, outcome, speed_up

TIE: Final = 0.03
"""Differences below it are none, as for the paper's own tables."""
SHORT: Final = 256
LONG: Final = 8192
ZERO_3_MODELS: Final = ("llama-33b", "llama-65b")
"""Models that the paper shards by ZeRO-3."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One criticism and what the numbers say to it."""

    claim: str
    holds_in: int
    """Cases in which it holds."""
    cases: int
    evidence: str

    @property
    def finding(self) -> str:
        """In a few words."""
        if not self.cases:
            return "open: what it compares does not fit"
        if self.holds_in == self.cases:
            return "right"
        return f"right in {self.holds_in} of {self.cases} cases" if self.holds_in else "wrong"


def judged(
    claim: str, scenes: Sequence[Scene], holds: Callable[[Scene], bool], evidence: str
) -> Verdict:
    """Returns the verdict on a criticism that holds in some of the scenes."""
    return Verdict(claim, sum(map(holds, scenes)), len(scenes), evidence)


def running(scenes: Sequence[Scene], *ways: Way) -> list[Scene]:
    """Returns the scenes in which all of some placements fit."""
    return [s for s in scenes if all(outcome(s, way).samples_per_s for way in ways)]


def running_at_both_lengths(scenes: Sequence[Scene], *ways: Way) -> list[Scene]:
    """Returns the short scenes in which they fit, at the long length too."""
    return [s for s in scenes if len(running([s, longer(s)], *ways)) == 2]


def longer(scene: Scene) -> Scene:
    """Returns a scene with sequences of the long length."""
    return replace(scene, tokens=LONG)


def factor(scene: Scene, way: Way, over: Way) -> float:
    """Returns how much faster one placement is than another where both fit."""
    found = speed_up(scene, way, over)
    assert found is not None, f"{way.name} or {over.name} does not run: {scene}"
    return found


def generation_shares(scenes: Sequence[Scene], way: Way) -> list[float]:
    """Returns generation's share of an iteration, where the placement fits."""
    return [outcome(scene, way).shares.get("generate", 0.0) for scene in running(scenes, way)]


def is_taken_away(weak: float, fair: float) -> bool:
    """Returns whether a gain over a weak baseline is less than half as large over a fair one."""
    return weak > 1 + TIE and fair - 1 < 0.5 * (weak - 1)
