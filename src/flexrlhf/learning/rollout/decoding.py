"""The loop that all in-process engines share: draw a token per row, hand out rows that ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flexrlhf.learning.rollout.counter_random import UpcomingUniforms
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.rows import Rows
from flexrlhf.learning.rollout.sampling import draw_tokens
from flexrlhf.learning.rollout.waves import WaitingRequests, Wave


@dataclass(frozen=True, slots=True)
class Room:
    """What a decoder may have to hold at one time."""

    rows: int
    """Sequences."""
    prompt_tokens: int
    """Of the longest prompt."""
    new_tokens: int
    """Of the longest answer."""
    read_tokens: int = 1
    """Of a sequence in one step, at most."""


class Decoder(Protocol):
    """Sequences inside a model: one row per answer that has not ended."""

    @property
    def admits(self) -> bool:
        """Whether answers may begin beside those that run; else only where there are none."""
        ...

    def admit(self, wave: Wave) -> Tensor:
        """Reads the prompts of new rows, which come behind the present ones.

        Returns:
            The logits [new rows, V] of their first tokens.
        """
        ...

    def end(self, answers: Mapping[int, Sequence[int]]) -> None:
        """Hears all tokens that were drawn in rows that the next `keep` leaves out, by row."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone. Int64 [B], on the CPU."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Appends one token to every row; returns the logits [B, V] of the next.

        They are read before the next step, which may write into the same place.
        """
        ...


class Decoding:
    """Answers on their way, token by token: where one ends, the next that waits begins.

    Args:
        decoder: the model.
        requests: in the order in which they begin.
        sampling: how tokens are drawn.
        weight_version: of the model.
        at_once: most rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        weight_version: int,
        at_once: int,
    ) -> None:
        self._decoder = decoder
        self._waiting = WaitingRequests(requests)
        self._sampling = sampling
        self._at_once = at_once
        self._rows = Rows(sampling, weight_version)
        self._uniforms = UpcomingUniforms(sampling.seed)
        self._tokens_B: Tensor | None = None
        """Drawn last, of the rows that go on; None where there is no row."""

    @property
    def goes_on(self) -> bool:
        """Whether an answer has not ended."""
        return bool(self._waiting) or self._tokens_B is not None

    def advance(self) -> list[Generation]:
        """Lets answers begin, gives each row a token, and returns what ended with it."""
        logits_BV = self._next_logits()
        positions_B = self._rows.positions
        uniforms_B = self._uniforms.take(self._rows.sample_ids, positions_B)
        drawn = draw_tokens(
            logits_BV,
            torch.from_numpy(uniforms_B).to(logits_BV.device),
            self._sampling,
            positions_B=torch.from_numpy(positions_B),
        )
        is_live_B = self._rows.append(drawn)
        self._tokens_B = drawn.tokens
        return [] if is_live_B.all() else self._take_out(is_live_B)

    def _take_out(self, is_live_B: NDArray[np.bool_]) -> list[Generation]:
        """Lets the rows go that end, and returns their answers."""
        assert self._tokens_B is not None, "a token was drawn for every row"
        ended = self._rows.generations(~is_live_B)
        row_of = {int(self._rows.sample_ids[row]): int(row) for row in (~is_live_B).nonzero()[0]}
        self._decoder.end({row_of[answer.sample_id]: answer.tokens for answer in ended})
        rows = compaction(torch.from_numpy(is_live_B))
        self._rows.keep(rows.numpy())
        self._uniforms.keep(rows.numpy())
        self._decoder.keep(rows)
        self._tokens_B = self._tokens_B[rows.to(self._tokens_B.device)] if len(rows) else None
        return ended

    def _next_logits(self) -> Tensor:
        """Returns the logits of all rows, those included that begin where there is room."""
        logits = [] if self._tokens_B is None else [self._decoder.step(self._tokens_B)]
        num_free = self._at_once - sum(map(len, logits))
        if self._waiting and num_free and (self._decoder.admits or not logits):
            wave = self._waiting.take(num_free, keeps_groups=not self._decoder.admits)
            logits.append(self._decoder.admit(wave))
            self._rows.begin(wave.sample_ids)
        return torch.cat(logits) if len(logits) > 1 else logits[0]


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
