"""How much of the prompts an engine that keeps their beginnings had to read."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class PromptCounts:
    """Added up over distinct prompts; a group's prompt counts once."""

    tokens: int = 0
    """Of whole prompts."""
    read: int = 0
    """Of these, tokens that went through the model: the others were kept."""

    def add(self, *, prompt: int, read: int) -> None:
        """Counts one prompt."""
        self.tokens += prompt
        self.read += read

    def take(self) -> PromptCounts:
        """Returns what was counted, and begins anew."""
        taken = PromptCounts(*astuple(self))
        self.tokens = self.read = 0
        return taken
