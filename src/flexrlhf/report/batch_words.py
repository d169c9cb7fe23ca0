"""The words for batch sizes with the numbers of one run, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flexrlhf.config.resolution import BatchSizes
from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.report.formats import format_value
from flexrlhf.report.run_folder import setting

BatchWord = tuple[str, str, str]
"""Word, this run's value, and meaning."""


def batch_words(config: Mapping[str, Any]) -> list[BatchWord]:
    """Returns the words whose values a resolved config, as it stands in config.yaml, tells."""
    generates = _generates(config)
    words = [*_samples(config, generates=generates), *_micro_batch(config)]
    return words + (list(_longest(config)) if generates else [])


def _samples(config: Mapping[str, Any], *, generates: bool) -> Iterator[BatchWord]:
    prompts = setting(config, "training.prompts_per_iteration")
    answers = setting(config, "rollout.samples_per_prompt") if generates else 1
    if not _are_counts(prompts, answers):
        return
    if generates:
        yield "prompts per iteration", format_value(prompts), "Prompts drawn for one iteration."
        yield (
            "samples per prompt",
            format_value(answers),
            "Answers to each prompt: the group, where an algorithm compares answers.",
        )
    meaning = "Prompts × samples per prompt" if generates else "Rows of data, or pairs"
    samples = prompts * answers
    yield "samples per iteration", format_value(samples), f"{meaning}: what one iteration takes."
    yield from _steps(config, samples)


def _steps(config: Mapping[str, Any], samples: int) -> Iterator[BatchWord]:
    mini_batch = setting(config, "training.mini_batch_samples")
    epochs = setting(config, "algorithm.epochs")
    iterations = setting(config, "training.iterations")
    if not _are_counts(mini_batch, epochs, iterations):
        return
    sizes = BatchSizes(samples, mini_batch, epochs, iterations)
    for word, value, meaning in (
        (
            "mini-batch",
            mini_batch,
            "Samples (not prompts) of one optimiser step, over all devices.",
        ),
        ("mini-batches per epoch", sizes.num_mini_batches, "Samples per iteration ÷ mini-batch."),
        ("epochs", epochs, "Passes over the samples of an iteration."),
        (
            "optimiser steps per iteration",
            sizes.steps_per_iteration,
            "Mini-batches per epoch × epochs.",
        ),
        ("optimiser steps of the run", sizes.num_steps, "Those of an iteration × iterations."),
    ):
        yield word, format_value(value), meaning


def _micro_batch(config: Mapping[str, Any]) -> Iterator[BatchWord]:
    meaning = "What one forward and backward pass holds at once; it never changes the result."
    samples = setting(config, "training.micro_batch_samples")
    tokens = setting(config, "training.micro_batch_tokens")
    if samples is not None:
        yield "micro-batch", f"{format_value(samples)} samples", meaning
    elif tokens == "auto":
        yield "micro-batch", "auto: a trial step finds its tokens", meaning
    elif tokens is not None:
        yield "micro-batch", f"{format_value(tokens)} tokens", meaning


def _longest(config: Mapping[str, Any]) -> Iterator[BatchWord]:
    for key, what in (("data.max_prompt_tokens", "prompt"), ("rollout.max_new_tokens", "answer")):
        value = setting(config, key)
        if value is not None:
            yield (
                f"longest {what}",
                f"{format_value(value)} tokens",
                f"A {what} has at most so many.",
            )


def _are_counts(*values: Any) -> bool:
    return all(isinstance(value, int) and value > 0 for value in values)


def _generates(config: Mapping[str, Any]) -> bool:
    """Whether the model answers prompts; an algorithm that is not known is taken to."""
    try:
        return algorithm_spec(str(setting(config, "algorithm.name", ""))).generates
    except ConfigError:
        return True
