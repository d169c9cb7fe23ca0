"""The loop that all in-process engines share: draw a token per row, hand out rows that ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flexrlhf.learning.rollout.counter_random import uniforms
from flexrlhf.learning.rollout.protocol import Generation, OnFinished, Sampling
from flexrlhf.learning.rollout.sampling import DrawnTokens, draw_tokens


class Decoder(Protocol):
    """A wave's sequences inside a model: one row per answer that has not ended."""

    def start(self) -> Tensor:
        """Reads the prompts; returns the logits [B, V] of every answer's first token."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone. Int64 [B], on the CPU."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Appends one token to every row; returns the logits [B, V] of the next."""
        ...


def decode(
    decoder: Decoder,
    sample_ids: Sequence[int],
    sampling: Sampling,
    weight_version: int,
    on_finished: OnFinished | None = None,
) -> list[Generation]:
    """Generates until every row has ended; the answers come in the order of `sample_ids`.

    Args:
        decoder: the wave inside a model.
        sample_ids: of its rows.
        sampling: how tokens are drawn.
        weight_version: of the model.
        on_finished: is given each answer at the token that ends it.
    """
    answers = _Answers(sample_ids, sampling, weight_version)
    logits_BV = decoder.start()
    while True:
        uniforms_B = answers.next_uniforms().to(logits_BV.device)
        drawn = draw_tokens(logits_BV, uniforms_B, sampling, position=answers.num_drawn)
        is_live_B = answers.append(drawn)
        rows = compaction(is_live_B)
        if len(rows) < len(is_live_B):
            for generation in answers.take(~is_live_B):
                if on_finished is not None:
                    on_finished(generation)
            if not len(rows):
                return answers.in_order()
            answers.keep(rows)
            decoder.keep(rows)
        logits_BV = decoder.step(drawn.tokens[rows.to(logits_BV.device)])


def compaction(is_live_B: Tensor) -> Tensor:
    """Returns, for each row left, the old row that takes it: rows move into holes only.

    The live rows behind the new end fill the holes before it, so that a cache moves one row per
    row that ended, and none when the ended rows were the last.

    Args:
        is_live_B: bool, on the CPU.
    """
    num_left = int(is_live_B.sum())
    rows = torch.arange(num_left)
    rows[~is_live_B[:num_left]] = is_live_B[num_left:].nonzero().squeeze(-1) + num_left
    return rows


class _Answers:
    """What was drawn so far, answer by answer, and which answer each live row belongs to."""

    def __init__(self, sample_ids: Sequence[int], sampling: Sampling, weight_version: int) -> None:
        size = (len(sample_ids), sampling.max_new_tokens)
        self._sampling = sampling
        self._weight_version = weight_version
        self._sample_ids = np.asarray(sample_ids, dtype=np.uint64)
        self._tokens = torch.zeros(size, dtype=torch.int64)
        self._logprobs = torch.zeros(size, dtype=torch.float64)
        self._sampling_logprobs = torch.zeros(size, dtype=torch.float64)
        self._finished = torch.zeros(len(sample_ids), dtype=torch.bool)
        self._end_tokens = torch.tensor(sampling.end_tokens, dtype=torch.int64)
        self._answer_of_row = torch.arange(len(sample_ids))
        self._ended: dict[int, Generation] = {}
        self.num_drawn = 0

    def next_uniforms(self) -> Tensor:
        """One number per live row, for the token at position `num_drawn`."""
        live_ids = self._sample_ids[self._answer_of_row.numpy()]
        return torch.from_numpy(uniforms(self._sampling.seed, live_ids, self.num_drawn))

    def append(self, drawn: DrawnTokens) -> Tensor:
        """Stores one token per live row; returns which rows go on, bool [B] on the CPU."""
        rows, tokens_B = self._answer_of_row, drawn.tokens.cpu()
        self._tokens[rows, self.num_drawn] = tokens_B
        self._logprobs[rows, self.num_drawn] = drawn.logprobs.cpu().double()
        self._sampling_logprobs[rows, self.num_drawn] = drawn.sampling_logprobs.cpu().double()
        self.num_drawn += 1
        ended_B = torch.isin(tokens_B, self._end_tokens)
        self._finished[rows] = ended_B
        if self.num_drawn == self._sampling.max_new_tokens:
            return torch.zeros_like(ended_B)
        return ~ended_B

    def take(self, has_ended_B: Tensor) -> Iterator[Generation]:
        """Yields the answers of the rows that end with the token appended last."""
        length = self.num_drawn
        for answer in self._answer_of_row[has_ended_B].tolist():
            self._ended[answer] = Generation(
                sample_id=int(self._sample_ids[answer]),
                tokens=tuple(self._tokens[answer, :length].tolist()),
                logprobs=tuple(self._logprobs[answer, :length].tolist()),
                sampling_logprobs=tuple(self._sampling_logprobs[answer, :length].tolist()),
                finished=bool(self._finished[answer]),
                weight_version=self._weight_version,
            )
            yield self._ended[answer]

    def keep(self, rows: Tensor) -> None:
        self._answer_of_row = self._answer_of_row[rows]

    def in_order(self) -> list[Generation]:
        return [self._ended[answer] for answer in range(len(self._sample_ids))]
