"""What one iteration has to get through, whatever the placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flexrlhf.planning.costs.lengths import Lengths


@dataclass(frozen=True)  # without slots, so that sums that a search asks for often stay
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
    sequence_split: int = 1
    """Replicas that share each sequence in training and scoring: context parallelism. A pass is
    then of as many samples for all of them together."""
    generated: float = 1.0
    """Answers generated and rewarded for each that is trained on."""
    speedup: float = 1.0
    """Factor by which generation is faster than the costs say: speculation, for example."""

    @cached_property
    def mean_tokens(self) -> float:
        """Tokens of a sequence, prompt and response, on average."""
        return self.prompt.mean + self.response.mean

    @cached_property
    def longest_tokens(self) -> float:
        """Tokens of the longest sequence."""
        return self.prompt.longest + self.response.longest

    def imbalance(self, samples: float, replicas: float) -> float:
        """Returns how much more than the mean the fullest replica gets to do, at least 1.

        Sequences go to replicas so that these are even, but the longest stays in one piece.

        Args:
            samples: that are shared out.
            replicas: to which they go.
        """
        owners = max(1.0, replicas / self.sequence_split)
        if samples <= 0 or owners <= 1:
            return 1.0
        longest = self.prompt.longest_of(samples) + self.response.longest_of(samples)
        share = samples * self.mean_tokens / owners
        return max(1.0, longest / share) if samples >= owners else 1.0

    @cached_property
    def mean_context(self) -> float:
        """Positions that a token of a whole sequence attends to, on average over tokens."""
        if self.mean_tokens == 0:
            return 0.0
        crossed = 2 * self.prompt.mean * self.response.mean
        squares = self.prompt.mean_square + self.response.mean_square + crossed
        return squares / self.mean_tokens / 2
