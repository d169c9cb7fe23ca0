"""Checks of the held-out rows against the algorithm and the training rows."""

from __future__ import annotations

from collections.abc import Iterator

from flexrlhf.config.data import DataSource, EvaluationSource
from flexrlhf.config.problems import Problem, mistake
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.sources import REASONING_GYM

_NAME = "algorithm.name"


def check_evaluation(config: RunConfig) -> Iterator[Problem]:
    """Yields settings of `data.evaluation` that would do nothing, or not what they say."""
    evaluation = config.data.evaluation
    if evaluation is None:
        return
    spec = spec_of(config)
    if spec.generates:
        yield from _check_answers(evaluation)
    else:
        yield from _check_needless(evaluation, spec.name)
    source = getattr(config.data, spec.data)
    if source is not None and _same_rows(source, evaluation):
        yield mistake(
            "data.evaluation.seed",
            evaluation.seed,
            f"some held-out rows would be training rows: row i of {source.path} is made from"
            f" seed + i, and the training rows have seed {source.seed}, size {source.size}.",
            "Right: seeds that differ by at least the size.",
            _NAME,
            f"data.{spec.data}",
            "data.evaluation",
        )


def _check_answers(evaluation: EvaluationSource) -> Iterator[Problem]:
    if evaluation.greedy and evaluation.samples_per_prompt > 1:
        yield mistake(
            "data.evaluation.samples_per_prompt",
            evaluation.samples_per_prompt,
            "greedy answers to one prompt are all the same.",
            "Right: 1, or greedy: false.",
            "data.evaluation.greedy",
        )


def _check_needless(evaluation: EvaluationSource, algorithm: str) -> Iterator[Problem]:
    """Yields how answers would be drawn, where none are. The defaults stand in a saved config."""
    given = {"greedy": evaluation.greedy, "samples_per_prompt": evaluation.samples_per_prompt}
    for key, value in given.items():
        if value != EvaluationSource.model_fields[key].default:
            yield mistake(
                f"data.evaluation.{key}",
                value,
                f"{algorithm} answers no prompts: held-out rows are judged by the loss on them.",
                "Right: leave it out.",
                _NAME,
            )


def _same_rows(training: DataSource, evaluation: EvaluationSource) -> bool:
    if not training.path.startswith(REASONING_GYM) or training.path != evaluation.path:
        return False
    overlaps = (
        training.seed < evaluation.seed + evaluation.size
        and evaluation.seed < training.seed + training.size
    )
    return overlaps and training.options == evaluation.options
