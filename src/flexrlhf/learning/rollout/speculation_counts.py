"""How much of what was proposed was drawn."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class SpeculationCounts:
    """Added up over the decode steps of answers that had begun."""

    steps: int = 0
    """Of each answer by itself: a step of 8 answers counts 8."""
    tokens: int = 0
    """Drawn in these steps."""
    proposed: int = 0
    verified: int = 0
    """Proposed tokens before which all were drawn, so that they could be."""
    accepted: int = 0
    """Of these, the tokens that were drawn."""

    def add(self, *, tokens: int, proposed: int, verified: int, accepted: int) -> None:
        """Counts one step of one answer."""
        self.steps += 1
        self.tokens += tokens
        self.proposed += proposed
        self.verified += verified
        self.accepted += accepted

    def take(self) -> SpeculationCounts:
        """Returns what was counted, and begins anew."""
        taken = SpeculationCounts(*astuple(self))
        self.steps = self.tokens = self.proposed = self.verified = self.accepted = 0
        return taken
