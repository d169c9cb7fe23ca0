"""What was drawn so far for the answers that run, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexrlhf.learning.rollout.protocol import Generation, Sampling
from flexrlhf.learning.rollout.sampling import DrawnTokens


class Rows:
    """Tokens and log-probs of each row, on the CPU; rows may have begun at different steps.

    Args:
        sampling: which tokens end an answer, and how long it may become.
        weight_version: of all answers.
    """

    def __init__(self, sampling: Sampling, weight_version: int) -> None:
        self._weight_version = weight_version
        self._most = sampling.max_new_tokens
        self._end_tokens = torch.tensor(sampling.end_tokens, dtype=torch.int64)
        self._has_end_token = torch.zeros(0, dtype=torch.bool)
        self._tokens = torch.zeros(0, self._most, dtype=torch.int64)
        self._logprobs = torch.zeros(2, 0, self._most, dtype=torch.float64)
        """Of the full softmax, and of the distribution drawn from."""
        self.sample_ids = torch.zeros(0, dtype=torch.int64)
        """int64 [B]."""
        self.positions = torch.zeros(0, dtype=torch.int64)
        """Of each row's next token in its answer, int64 [B]."""

    def begin(self, sample_ids: Sequence[int]) -> None:
        """Adds rows behind the present ones."""
        num_old, num_all = len(self.sample_ids), len(self.sample_ids) + len(sample_ids)
        self.sample_ids = torch.cat([self.sample_ids, torch.tensor(sample_ids, dtype=torch.int64)])
        self.positions = torch.cat([self.positions, self.positions.new_zeros(len(sample_ids))])
        if num_all > len(self._tokens):
            tokens, logprobs = self._tokens, self._logprobs
            self._tokens = tokens.new_zeros(num_all, self._most)
            self._logprobs = logprobs.new_zeros(2, num_all, self._most)
            self._tokens[:num_old] = tokens[:num_old]
            self._logprobs[:, :num_old] = logprobs[:, :num_old]

    def append(self, drawn: DrawnTokens) -> Tensor:
        """Stores one token per row; returns which rows go on, bool [B]."""
        tokens_B = drawn.tokens.cpu()
        logprobs_2B = torch.stack([drawn.logprobs, drawn.sampling_logprobs]).cpu().double()
        rows, places = slice(len(tokens_B)), self.positions[:, None]
        self._tokens[rows].scatter_(1, places, tokens_B[:, None])
        self._logprobs[:, rows].scatter_(2, places.expand(2, -1, 1), logprobs_2B[:, :, None])
        self.positions = self.positions + 1
        self._has_end_token = torch.isin(tokens_B, self._end_tokens)
        return ~self._has_end_token & (self.positions < self._most)

    def generations(self, has_ended_B: Tensor) -> list[Generation]:
        """Returns the answers of the rows that end with the token appended last, by sample id."""
        ended = [self._generation(row) for row in has_ended_B.nonzero().squeeze(-1).tolist()]
        return sorted(ended, key=lambda answer: answer.sample_id)

    def keep(self, rows: Tensor) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone."""
        self.sample_ids, self.positions = self.sample_ids[rows], self.positions[rows]
        moved = (rows != torch.arange(len(rows))).nonzero().squeeze(-1)
        self._tokens[moved] = self._tokens[rows[moved]]
        self._logprobs[:, moved] = self._logprobs[:, rows[moved]]

    def _generation(self, row: int) -> Generation:
        length = int(self.positions[row])
        logprobs, sampling_logprobs = self._logprobs[:, row, :length].tolist()
        return Generation(
            sample_id=int(self.sample_ids[row]),
            tokens=tuple(self._tokens[row, :length].tolist()),
            logprobs=tuple(logprobs),
            sampling_logprobs=tuple(sampling_logprobs),
            finished=bool(self._has_end_token[row]),
            weight_version=self._weight_version,
        )
