"""Answers of an in-process engine one by one, while others are still being generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from flexrlhf.core.errors import StaleWeights
from flexrlhf.learning.rollout.decoding import Decoding
from flexrlhf.learning.rollout.lockstep import Pass, RunPass
from flexrlhf.learning.rollout.protocol import Generation, OnFinished
from flexrlhf.learning.rollout.speculation.speculative_decoding import SpeculativeDecoding


class EngineStream:
    """See `AnswerStream`.

    Args:
        num_answers: all of them.
        begin: makes what decodes them, given what makes a pass.
        running: holds while answers are generated, and gives what makes a pass meanwhile.
        version: of the weights that the engine holds.
    """

    def __init__(
        self,
        num_answers: int,
        begin: Callable[[RunPass], Decoding | SpeculativeDecoding],
        running: Callable[[], AbstractContextManager[RunPass]],
        version: Callable[[], int],
    ) -> None:
        self._begin = begin
        self._running = running
        self._version = version
        self._begun_with = 0
        """The version of the weights."""
        self._decoding: Decoding | SpeculativeDecoding | None = None
        """None before the first answer, and when all have ended: the cache is gone with it."""
        self._run: RunPass | None = None
        self._ended: deque[Generation] = deque()
        self.num_left = num_answers

    def take(self, count: int, on_finished: OnFinished | None = None) -> list[Generation]:
        """See `AnswerStream`."""
        tell = None if on_finished is None else _outside_inference(on_finished)
        with self._running() as self._run:
            while len(self._ended) < count:
                for answer in self._advance():
                    self._ended.append(answer)
                    if tell is not None:
                        tell(answer)
        self.num_left -= count
        return [self._ended.popleft() for _ in range(count)]

    def _advance(self) -> list[Generation]:
        version = self._version()
        if self._decoding is None:
            self._begun_with = version
            self._decoding = self._begin(self._pass)
        elif version != self._begun_with:
            raise StaleWeights(
                f"Answers were begun with weights {self._begun_with}; the engine holds {version}.",
                "A cache is of one version of the weights.",
                "Take all answers of a stream before new weights are installed.",
            )
        ended = self._decoding.advance()
        if not self._decoding.goes_on:
            self._decoding = None
        return ended

    def _pass(self, call: Pass) -> Tensor:
        assert self._run is not None, "passes are made while answers are taken"
        return self._run(call)


def _outside_inference(on_finished: OnFinished) -> OnFinished:
    """Tensors that are made of an answer may be trained with."""

    def tell(generation: Generation) -> None:
        with torch.inference_mode(mode=False):
            on_finished(generation)

    return tell
