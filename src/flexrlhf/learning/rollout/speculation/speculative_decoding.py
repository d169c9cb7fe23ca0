"""The loop of `Decoding` with several tokens per step: those proposed that are drawn anyway.

Each token of an answer has a random number of its own, so what the model draws at a place is known
once the text before it is. A step reads what was proposed all at once and draws behind every token
of it: as long as proposed and drawn tokens agree, the text before was right, and so is the token.
Answers are therefore those of `Decoding`, token by token, up to the rounding of matrix products.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flexrlhf.learning.rollout.counter_random import uniforms
from flexrlhf.learning.rollout.decoding import compaction
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.sampling import draw_tokens
from flexrlhf.learning.rollout.speculation.drafter import Drafter, RunDecoder
from flexrlhf.learning.rollout.speculation_counts import SpeculationCounts
from flexrlhf.learning.rollout.waves import WaitingRequests


@dataclass(slots=True)
class _Answer:
    """What was drawn so far; the three lists are aligned."""

    sample_id: int
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    sampling_logprobs: list[float] = field(default_factory=list[float])


class SpeculativeDecoding:
    """Answers on their way, some tokens at a time. See `Decoding`.

    Args:
        decoder: the model; admits answers at any time.
        drafter: proposes tokens.
        requests: in the order in which they begin.
        sampling: how tokens are drawn.
        weight_version: of the model.
        at_once: most rows.
        most_proposed: tokens for a row in one step.
        counts: what is proposed and drawn is added to these.
    """

    def __init__(
        self,
        decoder: RunDecoder,
        drafter: Drafter,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        weight_version: int,
        at_once: int,
        most_proposed: int,
        counts: SpeculationCounts,
    ) -> None:
        self._decoder = decoder
        self._drafter = drafter
        self._waiting = WaitingRequests(requests)
        self._sampling = sampling
        self._ends = frozenset(sampling.end_tokens)
        self._weight_version = weight_version
        self._at_once = at_once
        self._most_proposed = most_proposed
        self._counts = counts
        self._answers: list[_Answer] = []

    @property
    def goes_on(self) -> bool:
        """Whether an answer has not ended."""
        return bool(self._waiting or self._answers)

    def advance(self) -> list[Generation]:
        """Lets answers begin, gives each row at least a token, and returns what ended with it."""
        proposals = self._proposals()
        logits = [self._read(proposals)] if self._answers else []
        num_free = self._at_once - len(self._answers)
        if self._waiting and num_free:
            wave = self._waiting.take(num_free, keeps_groups=False)
            logits.append(self._decoder.admit(wave))
            self._drafter.begin(wave)
            self._answers += map(_Answer, wave.sample_ids)
            proposals += [[] for _ in wave.sample_ids]
        taken = self._draw(torch.cat(logits), proposals)
        self._give_back(proposals, taken)
        self._drafter.append(taken)
        return self._take_out()

    def _proposals(self) -> list[list[int]]:
        """Returns what may come next in each row, with room for one token behind it."""
        lasting = [self._sampling.max_new_tokens - len(one.tokens) for one in self._answers]
        most = [min(self._most_proposed, left - 1) for left in lasting]
        return [until_end(one, self._ends) for one in self._drafter.propose(most)]

    def _read(self, proposals: Sequence[Sequence[int]]) -> Tensor:
        """Reads each row's last token and what is proposed behind it; returns all logits."""
        runs = [
            (answer.tokens[-1], *proposed)
            for answer, proposed in zip(self._answers, proposals, strict=True)
        ]
        tokens_N = torch.tensor([token for run in runs for token in run])
        return self._decoder.extend(tokens_N, torch.tensor([len(run) for run in runs]))

    def _draw(self, logits_NV: Tensor, proposals: Sequence[Sequence[int]]) -> list[list[int]]:
        """Draws behind every token that was read; returns what stays of it, for each row."""
        counts = [len(proposed) + 1 for proposed in proposals]
        sample_ids = np.repeat([answer.sample_id for answer in self._answers], counts)
        positions_N = np.concatenate(
            [
                len(answer.tokens) + np.arange(count)
                for answer, count in zip(self._answers, counts, strict=True)
            ]
        )
        uniforms_N = uniforms(self._sampling.seed, sample_ids, positions_N)
        drawn = draw_tokens(
            logits_NV,
            torch.from_numpy(uniforms_N).to(logits_NV.device),
            self._sampling,
            positions_B=torch.from_numpy(positions_N),
        )
        tokens = drawn.tokens.tolist()
        logprobs, sampling_logprobs = drawn.logprobs.tolist(), drawn.sampling_logprobs.tolist()
        taken: list[list[int]] = []
        first = 0
        for answer, proposed in zip(self._answers, proposals, strict=True):
            length = agreed_length(tokens[first : first + len(proposed) + 1], proposed, self._ends)
            run = slice(first, first + length)
            if answer.tokens:
                self._count(tokens[run], proposed)
            answer.tokens += tokens[run]
            answer.logprobs += logprobs[run]
            answer.sampling_logprobs += sampling_logprobs[run]
            taken.append(tokens[run])
            first += len(proposed) + 1
        return taken

    def _count(self, taken: Sequence[int], proposed: Sequence[int]) -> None:
        pairs = list(zip(taken, proposed, strict=False))
        self._counts.add(
            tokens=len(taken),
            proposed=len(proposed),
            verified=len(pairs),
            accepted=sum(one == other for one, other in pairs),
        )

    def _give_back(
        self, proposals: Sequence[Sequence[int]], taken: Sequence[Sequence[int]]
    ) -> None:
        """Lets the model forget what was proposed in vain: it keeps all but the last token."""
        surplus = [
            1 + len(proposed) - len(tokens)
            for proposed, tokens in zip(proposals, taken, strict=True)
        ]
        if any(surplus):
            self._decoder.shorten(torch.tensor(surplus))

    def _take_out(self) -> list[Generation]:
        """Lets the rows go that have ended, and returns their answers by sample id."""
        goes_on = [not self._has_ended(answer) for answer in self._answers]
        if all(goes_on):
            return []
        ended = [
            self._generation(answer)
            for answer, stays in zip(self._answers, goes_on, strict=True)
            if not stays
        ]
        self._decoder.end(
            {
                row: answer.tokens
                for row, (answer, stays) in enumerate(zip(self._answers, goes_on, strict=True))
                if not stays
            }
        )
        rows_B = compaction(torch.tensor(goes_on))
        rows = rows_B.tolist()
        self._answers = [self._answers[row] for row in rows]
        self._decoder.keep(rows_B)
        self._drafter.keep(rows)
        return sorted(ended, key=lambda answer: answer.sample_id)

    def _has_ended(self, answer: _Answer) -> bool:
        is_full = len(answer.tokens) == self._sampling.max_new_tokens
        return is_full or answer.tokens[-1] in self._ends

    def _generation(self, answer: _Answer) -> Generation:
        return Generation(
            sample_id=answer.sample_id,
            tokens=tuple(answer.tokens),
            logprobs=tuple(answer.logprobs),
            sampling_logprobs=tuple(answer.sampling_logprobs),
            finished=answer.tokens[-1] in self._ends,
            weight_version=self._weight_version,
        )


def agreed_length(drawn: Sequence[int], proposed: Sequence[int], ends: Collection[int]) -> int:
    """Returns how many of the drawn tokens continue the text.

    Token i was drawn behind the first i proposed ones, so it stays while those were drawn too, and
    nothing stays behind a token that ends the answer.

    Args:
        drawn: one more than proposed.
        proposed: what was read.
        ends: tokens that end an answer.
    """
    for place, token in enumerate(proposed):
        if drawn[place] != token or token in ends:
            return place + 1
    return len(drawn)


def until_end(tokens: list[int], ends: Collection[int]) -> list[int]:
    """Returns the tokens up to the first that ends an answer, which is kept."""
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens
