"""What speculation is expected to gain: more tokens per step, for a step that reads more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexrlhf.planning.costs.held_model import HeldModel


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens that are proposed and verified in one step of the actor.

    Source: Leviathan et al. 2023, arXiv 2211.17192, section 3: proposals are taken to be right with
    one chance each, and there is always one.
    """

    most_proposed: int
    acceptance: float
    """Chance that a proposed token is drawn, if all before it were."""
    draft: HeldModel | None = None
    """The model that proposes; None where proposals cost nothing."""
    holds_draft: bool = False
    """Whether the draft is held for this alone."""

    @property
    def tokens_per_step(self) -> float:
        """That an answer gets, on average."""
        return sum(self.acceptance**number for number in range(self.most_proposed + 1))

    def token_s(
        self,
        verify_s: Callable[[int], float],
        draft_s: Callable[[HeldModel], float],
    ) -> float:
        """Returns the seconds in which every answer gets a token.

        Args:
            verify_s: seconds of a step in which each answer reads so many tokens.
            draft_s: seconds of a step of the model that proposes.
        """
        seconds = verify_s(1 + self.most_proposed)
        if self.draft is not None:
            seconds += self.most_proposed * draft_s(self.draft)
        return seconds / self.tokens_per_step


def draft_bytes(speculation: Speculation | None) -> float:
    """Returns what a model takes that is held to propose alone."""
    if speculation is None or speculation.draft is None or not speculation.holds_draft:
        return 0.0
    return speculation.draft.weight_bytes
