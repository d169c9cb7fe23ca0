"""Proposals of a smaller model, which draws with the random numbers of the places it proposes for.

Where it expects what the large model does, the same number gives the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor

from flexrlhf.learning.rollout.counter_random import uniforms
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.sampling import draw_tokens
from flexrlhf.learning.rollout.speculation.drafter import RunDecoder
from flexrlhf.learning.rollout.waves import Wave


class DraftModel:
    """See `Drafter`.

    Args:
        decoder: the smaller model, with as many rows as the large one.
        sampling: how the large one's tokens are drawn.
    """

    def __init__(self, decoder: RunDecoder, sampling: Sampling) -> None:
        self._decoder = decoder
        self._sampling = sampling
        self._sample_ids: list[int] = []
        self._num_drawn: list[int] = []
        self._unread: list[list[int]] = []
        """Drawn tokens of each row that the smaller model has not read."""
        self._ahead: list[list[int]] = []
        """What it has read of its own proposals, behind all that was drawn."""

    def begin(self, wave: Wave) -> None:
        """See `Drafter`."""
        self._decoder.admit(wave)
        self._sample_ids += wave.sample_ids
        self._num_drawn += [0] * len(wave.sample_ids)
        self._unread += [[] for _ in wave.sample_ids]
        self._ahead += [[] for _ in wave.sample_ids]

    def append(self, tokens: Sequence[Sequence[int]]) -> None:
        """See `Drafter`."""
        surplus: list[int] = []
        for row, drawn in enumerate(tokens):
            pairs = zip(self._ahead[row], drawn, strict=False)
            num_right = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            surplus.append(len(self._ahead[row]) - num_right)
            self._ahead[row] = []
            self._unread[row] += drawn[num_right:]
            self._num_drawn[row] += len(drawn)
        if any(surplus):
            self._decoder.shorten(torch.tensor(surplus))

    def propose(self, most: Sequence[int]) -> list[list[int]]:
        """See `Drafter`; a row takes as many steps of the smaller model as it gets tokens."""
        proposals: list[list[int]] = [[] for _ in most]
        asked = [row for row, count in enumerate(most) if count]
        while asked:
            logits_RV = self._read(asked, proposals)
            for row, token in zip(asked, self._draw(asked, proposals, logits_RV), strict=True):
                proposals[row].append(token)
            asked = [
                row
                for row in asked
                if len(proposals[row]) < most[row]
                and proposals[row][-1] not in self._sampling.end_tokens
            ]
        return proposals

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`."""
        self._decoder.keep(torch.tensor(rows, dtype=torch.int64))
        self._sample_ids = [self._sample_ids[row] for row in rows]
        self._num_drawn = [self._num_drawn[row] for row in rows]
        self._unread = [self._unread[row] for row in rows]
        self._ahead = [self._ahead[row] for row in rows]

    def _read(self, asked: Sequence[int], proposals: Sequence[Sequence[int]]) -> Tensor:
        """Reads what each asked row has not read yet; returns the logits behind it, [asked, V]."""
        runs: list[list[int]] = [[] for _ in proposals]
        for row in asked:
            if proposals[row]:
                runs[row] = [proposals[row][-1]]
                self._ahead[row] += runs[row]
            else:
                runs[row], self._unread[row] = self._unread[row], []
        counts_B = torch.tensor([len(run) for run in runs])
        tokens_N = torch.tensor([token for run in runs for token in run])
        logits_NV = self._decoder.extend(tokens_N, counts_B)
        return logits_NV[(counts_B.cumsum(0) - 1)[list(asked)].to(logits_NV.device)]

    def _draw(
        self, asked: Sequence[int], proposals: Sequence[Sequence[int]], logits_RV: Tensor
    ) -> list[int]:
        sample_ids = [self._sample_ids[row] for row in asked]
        positions = [self._num_drawn[row] + len(proposals[row]) for row in asked]
        uniforms_R = uniforms(self._sampling.seed, sample_ids, positions)
        drawn = draw_tokens(
            logits_RV,
            torch.from_numpy(uniforms_R).to(logits_RV.device),
            self._sampling,
            positions_B=torch.tensor(positions),
        )
        return drawn.tokens.tolist()
