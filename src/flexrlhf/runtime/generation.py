"""From the draw of prompts to samples with their text and log-probs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.rollout.protocol import (
    AnswerStream,
    Generation,
    Request,
    RolloutEngine,
    Sampling,
)

EVALUATION_IDS = 1 << 62
"""Sample ids of evaluation start here, so that no training sample shares their random numbers."""


@dataclass(frozen=True, slots=True)
class PromptDraw:
    """The prompts of a run in their seeded order."""

    prompts: Sequence[Prompt]
    order: SeededOrder
    per_iteration: int
    answers_per_prompt: int

    def micro_batch(self, iteration: int, index: int, num_micro_batches: int) -> list[int]:
        """Returns the global draw numbers of one generation micro-batch."""
        first, last = (
            iteration * self.per_iteration + part * self.per_iteration // num_micro_batches
            for part in (index, index + 1)
        )
        return list(range(first, last))

    def prompt(self, draw: int) -> Prompt:
        """Returns the prompt with global draw number `draw`."""
        return self.prompts[self.order.take(draw, 1)[0]]


def end_tokens(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns the tokens that end an answer: the tokenizer's and those of the generation config.

    There are none where neither names one; every answer then has full length.
    """
    named = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    known = (token for token in (tokenizer.eos_token_id, *listed) if token is not None)
    return tuple(dict.fromkeys(cast("Iterable[int]", known)))


class SampleStream:
    """Samples in the order in which their answers end; they wait while nobody takes any.

    Args:
        answers: of the engine.
        sample_of: makes a sample of an answer.
    """

    def __init__(self, answers: AnswerStream, sample_of: Callable[[Generation], Sample]) -> None:
        self._answers = answers
        self._sample_of = sample_of

    @property
    def num_left(self) -> int:
        """Samples that were not taken yet."""
        return self._answers.num_left

    def take(self, count: int) -> list[Sample]:
        """Generates until `count` more answers have ended, and returns those."""
        return [self._sample_of(answer) for answer in self._answers.take(count)]


class Generator:
    """Writes answers with an engine and turns them into samples.

    Args:
        engine: holds the policy's weights.
        tokenizer: decodes answers for reward functions.
        dtype: of the per-token numbers.
    """

    def __init__(
        self, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
    ) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._dtype = dtype

    def answer(
        self, draws: Sequence[tuple[int, Prompt]], answers_per_prompt: int, sampling: Sampling
    ) -> list[Sample]:
        """Returns `answers_per_prompt` samples for each (draw number, prompt), in id order."""
        stream = self.stream(draws, answers_per_prompt, sampling)
        return sorted(stream.take(stream.num_left), key=lambda sample: sample.sample_id)

    def stream(
        self,
        draws: Sequence[tuple[int, Prompt]],
        answers_per_prompt: int,
        sampling: Sampling,
        *,
        at_once: int | None = None,
    ) -> SampleStream:
        """Returns the same samples one by one, as their answers end.

        Args:
            draws: number and prompt, in the order in which answers begin.
            answers_per_prompt: samples of each.
            sampling: how tokens are drawn.
            at_once: answers generated at one time; None: as many as the engine does.
        """
        requests = [
            Request(
                prompt_tokens=prompt.tokens,
                sample_ids=tuple(
                    draw * answers_per_prompt + answer for answer in range(answers_per_prompt)
                ),
            )
            for draw, prompt in draws
        ]
        prompts = {
            sample_id: prompt
            for request, (_, prompt) in zip(requests, draws, strict=True)
            for sample_id in request.sample_ids
        }
        return SampleStream(
            self.engine.stream(requests, sampling, at_once=at_once),
            lambda generation: self._sample(generation, prompts[generation.sample_id]),
        )

    def evaluate(
        self, prompts: Sequence[Prompt], answers_per_prompt: int, sampling: Sampling
    ) -> list[Sample]:
        """Answers held-out prompts; the same prompts always meet the same random numbers."""
        first = -(-EVALUATION_IDS // answers_per_prompt)
        draws = [(first + number, prompt) for number, prompt in enumerate(prompts)]
        return self.answer(draws, answers_per_prompt, sampling)

    def _sample(self, generation: Generation, prompt: Prompt) -> Sample:
        num_prompt = len(prompt.tokens)
        # By way of numpy, where the small things that an answer is made of cost a sixth.
        mask = np.ones(num_prompt + len(generation.tokens), dtype=np.bool_)
        mask[:num_prompt] = False
        fields: dict[str, Tensor] = {}
        for name in ("logprobs", "sampling_logprobs"):
            numbers = np.zeros(len(mask))
            numbers[num_prompt:] = getattr(generation, name)
            fields[name] = torch.from_numpy(numbers).to(self._dtype)
        tokens = np.array((*prompt.tokens, *generation.tokens), dtype=np.int64)
        return Sample(
            sample_id=generation.sample_id,
            prompt=prompt,
            tokens=torch.from_numpy(tokens),
            num_prompt_tokens=num_prompt,
            mask=torch.from_numpy(mask),
            text=str(self._tokenizer.decode(list(generation.tokens), skip_special_tokens=True)),
            finished=generation.finished,
            weight_version=generation.weight_version,
            fields=fields,
        )
