"""How good the trained role is on rows that it never trains on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import DataKind
from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.data.collation import (
    COLLATE,
    Item,
    item_tokens,
    num_sequences,
    num_trainable_tokens,
)
from flexrlhf.learning.data.experience import Prompt, Sample, pack_by_tokens
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.training.objectives import GlobalCounts
from flexrlhf.learning.training.step import RoleTrainer, normalised
from flexrlhf.runtime.generation import Generator
from flexrlhf.runtime.measurements import Measurement, Measurements, joined
from flexrlhf.runtime.reward_role import RewardRole

CHUNK_TOKENS = 4096
"""Tokens of one evaluation chunk, padding included."""

EvaluationResult = tuple[Mapping[str, float], Sequence[Sample]]


def is_evaluated(config: RunConfig, iteration: int) -> bool:
    """Returns whether finished iteration `iteration` (0: before training) is evaluated."""
    section = config.data.evaluation
    if section is None:
        return False
    return iteration % section.every == 0 or iteration == config.training.iterations


def next_evaluation(config: RunConfig, finished: int) -> float:
    """Returns the first iteration after `finished` that is evaluated; infinity where none is."""
    section = config.data.evaluation
    if section is None:
        return math.inf
    due = (finished // section.every + 1) * section.every
    last = config.training.iterations
    return min(due, last) if finished < last else due


def answer_evaluation(
    generator: Generator,
    reward: RewardRole,
    prompts: Sequence[Prompt],
    answers_per_prompt: int,
    sampling: Sampling,
    *,
    context: Callable[[], AbstractContextManager[Any]],
) -> Callable[[], EvaluationResult]:
    """Returns an evaluation that answers prompts and rewards the answers as training does."""

    def run() -> EvaluationResult:
        with context():
            samples = generator.evaluate(prompts, answers_per_prompt, sampling)
        reward.score(samples)
        return joined([answer_metrics(samples)]), samples

    return run


def answer_metrics(samples: Sequence[Sample]) -> Measurements:
    """Returns `eval/*` of rewarded answers to held-out prompts, or of a part of them."""
    metrics = {
        "eval/reward": Measurement.mean_of([sample.reward for sample in samples]),
        "eval/response_tokens": Measurement.mean_of(
            [float(sample.num_response_tokens) for sample in samples]
        ),
    }
    for part in dict.fromkeys(name for sample in samples for name in sample.reward_parts):
        metrics[f"eval/reward_{part}"] = Measurement.mean_of(
            [s.reward_parts[part] for s in samples if part in s.reward_parts]
        )
    return metrics


def loss_evaluation(
    kind: DataKind, trainer: RoleTrainer, items: Callable[[], Sequence[Item]]
) -> Callable[[], EvaluationResult]:
    """Returns an evaluation of the training loss, and what goes with it, on held-out rows.

    It raises RunFailed where one of its numbers is not finite.

    Args:
        kind: of the rows.
        trainer: of the role that is looked at.
        items: gives the rows, with what other roles say of them.
    """

    def run() -> EvaluationResult:
        rows = items()
        lengths = [item_tokens(item) for item in rows]
        counts = GlobalCounts(
            num_tokens=sum(num_trainable_tokens(item) for item in rows),
            num_sequences=sum(num_sequences(item) for item in rows),
            max_tokens=max(lengths),
        )
        bins = pack_by_tokens(lengths, max_tokens=max(CHUNK_TOKENS, *lengths))
        fields = trainer.objective.fields
        batches = [
            COLLATE[kind]([rows[p] for p in positions], fields).to(trainer.backend.device)
            for positions in bins
        ]
        metrics = normalised(trainer.measure(batches, counts), counts)
        _refuse_not_finite(metrics)
        return {f"eval/{name.replace('/', '_')}": value for name, value in metrics.items()}, []

    return run


def _refuse_not_finite(sums: Mapping[str, float]) -> None:
    for name, value in sums.items():
        if not math.isfinite(value):
            raise RunFailed(
                f"{name} on the held-out rows is {value}.",
                "It must be finite.",
                "Lower the learning rate, or look at the rows of data.evaluation.",
            )
