"""What was drawn so far for the answers that run, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
        self._end_tokens = np.array(sampling.end_tokens, dtype=np.int64)
        self._has_end_token = np.zeros(0, dtype=np.bool_)
        self._tokens = np.zeros((0, self._most), dtype=np.int64)
        self._logprobs = np.zeros((2, 0, self._most))
        """Of the full softmax, and of the distribution drawn from."""
        self.sample_ids = np.zeros(0, dtype=np.int64)
        """[B]."""
        self.positions = np.zeros(0, dtype=np.int64)
        """Of each row's next token in its answer, [B]."""

    def begin(self, sample_ids: Sequence[int]) -> None:
        """Adds rows behind the present ones."""
        num_old, num_all = len(self.sample_ids), len(self.sample_ids) + len(sample_ids)
        self.sample_ids = np.concatenate([self.sample_ids, np.array(sample_ids, dtype=np.int64)])
        self.positions = np.concatenate([self.positions, np.zeros(len(sample_ids), np.int64)])
        if num_all > len(self._tokens):
            tokens, logprobs = self._tokens[:num_old], self._logprobs[:, :num_old]
            self._tokens = np.zeros((num_all, self._most), dtype=np.int64)
            self._logprobs = np.zeros((2, num_all, self._most))
            self._tokens[:num_old], self._logprobs[:, :num_old] = tokens, logprobs

    def append(self, drawn: DrawnTokens) -> NDArray[np.bool_]:
        """Stores one token per row; returns which rows go on, [B]."""
        tokens_B = drawn.tokens.cpu().numpy()
        places = np.arange(len(tokens_B)), self.positions
        self._tokens[places] = tokens_B
        self._logprobs[0][places] = drawn.logprobs.cpu().numpy()
        self._logprobs[1][places] = drawn.sampling_logprobs.cpu().numpy()
        self.positions = self.positions + 1
        self._has_end_token = (tokens_B[:, None] == self._end_tokens).any(axis=1)
        return ~self._has_end_token & (self.positions < self._most)

    def generations(self, has_ended_B: NDArray[np.bool_]) -> list[Generation]:
        """Returns the answers of the rows that end with the token appended last, by sample id."""
        ended = [self._generation(row) for row in has_ended_B.nonzero()[0].tolist()]
        return sorted(ended, key=lambda answer: answer.sample_id)

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone."""
        self.sample_ids, self.positions = self.sample_ids[rows], self.positions[rows]
        moved = (rows != np.arange(len(rows))).nonzero()[0]
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
