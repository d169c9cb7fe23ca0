"""What one iteration has to get through, whatever the placement."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.planning.costs.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """Samples of an iteration and how long they are."""

    num_samples: int
    """Answers; rows where nothing is generated, and two sequences for each pair."""
    prompt: Lengths
    response: Lengths
    samples_per_prompt: int = 1
    mini_batches: int = 1
    """Optimiser steps per epoch and role."""
    epochs: int = 1
    logit_tokens: float = 1024.0
    """Positions whose logits over the vocabulary are alive at once, with a chunked loss."""
    speedup: float = 1.0
    """Factor by which generation is faster than the costs say: speculation, for example."""

    @property
    def mean_tokens(self) -> float:
        """Tokens of a sequence, prompt and response, on average."""
        return self.prompt.mean + self.response.mean

    @property
    def longest_tokens(self) -> float:
        """Tokens of the longest sequence."""
        return self.prompt.longest + self.response.longest

    @property
    def mean_context(self) -> float:
        """Positions that a token of a whole sequence attends to, on average over tokens."""
        if self.mean_tokens == 0:
            return 0.0
        crossed = 2 * self.prompt.mean * self.response.mean
        squares = self.prompt.mean_square + self.response.mean_square + crossed
        return squares / self.mean_tokens / 2
