"""Whole pieces of a run, one after the other as a run has them, by what their parts add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.passes import score_logprobs
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.hugging_face_config import shape_of_architecture
from flexrlhf.planning.costs.profiled.batches import Bin, Row, SequenceLength
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts, WholeCost
from flexrlhf.planning.costs.profiled.seconds import ModelSeconds
from flexrlhf.runtime.generation import Generator
from flexrlhf.runtime.profiling import subjects
from flexrlhf.runtime.profiling.smallest_run import tokenizer
from flexrlhf.runtime.profiling.timing import Work, nothing, seconds_of

_WIDTH, _LAYERS = 384, 3
"""Two such models are more than a processor's caches hold."""
_ANSWERS, _PROMPT, _RESPONSE = 16, 12, 24
_MICRO_BATCH: Final = 8
_CYCLES: Final = 5


def whole_cost(costs: ProfiledCosts, device: torch.device, meet: Work = nothing) -> WholeCost:
    """Returns what generation, scoring and training take, by what the constants say.

    Args:
        costs: the constants.
        device: that they are of.
        meet: waits for the other processes that do the same, so that the slowest counts.
    """
    pieces = (_generation(device), _scoring(device), _training(device))
    taken_s = [0.0 for _ in pieces]
    for cycle in range(_CYCLES + 1):
        for place, work in enumerate(pieces):
            meet()
            seconds = seconds_of(lambda work=work: (work(), meet()))
            taken_s[place] += seconds if cycle else 0.0
    expected_s = _expected_s(ModelSeconds(_held(costs.dtype), costs, packs=True))
    return WholeCost(
        *(taken / (_CYCLES * expected) for taken, expected in zip(taken_s, expected_s, strict=True))
    )


def _generation(device: torch.device) -> Work:
    generator = Generator(NativeEngine(_model(device)), tokenizer(), torch.float32)
    draws = [(number, Prompt(number, (1,) * _PROMPT, "")) for number in range(_ANSWERS)]
    return lambda: generator.answer(draws, 1, Sampling(max_new_tokens=_RESPONSE))


def _scoring(device: torch.device) -> Work:
    model, rows = _model(device), subjects.samples(_ANSWERS, _PROMPT + _RESPONSE)
    most = _ANSWERS * (_PROMPT + _RESPONSE)
    return lambda: score_logprobs(model, rows, temperature=1.0, max_tokens=most)


def _training(device: torch.device) -> Work:
    role, rows = subjects.trainer(_model(device)), subjects.samples(_ANSWERS, _PROMPT + _RESPONSE)

    def train() -> None:
        for first in range(0, _ANSWERS, _MICRO_BATCH):
            batch = COLLATE["prompts"](rows[first : first + _MICRO_BATCH], role.objective.fields)
            role.accumulate(batch.to(role.backend.device), subjects.counts(_ANSWERS))
        role.step(subjects.counts(_ANSWERS))

    return train


def _expected_s(model: ModelSeconds) -> Sequence[float]:
    """Returns the seconds of the three pieces by their parts."""
    answers = [SequenceLength(_PROMPT, _RESPONSE)] * _ANSWERS
    passes = _ANSWERS // _MICRO_BATCH
    return (
        model.generate(answers, samples_per_prompt=1).last_s,
        model.score([_bin(_ANSWERS)]),
        passes * model.train(_bin(_MICRO_BATCH)) + model.update(),
    )


def _bin(count: int) -> Bin:
    """Returns a pass over so many of the samples, each of which has one token that counts."""
    rows = tuple(
        Row(len(sample.tokens), sample.num_prompt_tokens)
        for sample in subjects.samples(count, _PROMPT + _RESPONSE)
    )
    return Bin(count, float(_PROMPT + _RESPONSE), count, rows)


def _held(dtype: str) -> HeldModel:
    shape = shape_of_architecture(subjects.architecture(_WIDTH, _LAYERS), "subject")
    return HeldModel(
        shape, weight_dtype=dtype, compute_dtype=dtype, is_trained=True, recomputes=False
    )


def _model(device: torch.device) -> nn.Module:
    return subjects.llama(_WIDTH, _LAYERS, device)
