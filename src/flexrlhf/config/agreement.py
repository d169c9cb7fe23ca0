"""Checks of values that must agree with each other, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flexrlhf.config.evaluation_checks import check_evaluation
from flexrlhf.config.keeping_checks import check_keeping
from flexrlhf.config.placement_checks import check_placement
from flexrlhf.config.problems import Problem, mistake
from flexrlhf.config.resolution import (
    batch_sizes,
    resolved_algorithm,
    role_origin,
    samples_per_iteration,
    spec_of,
)
from flexrlhf.config.rounding_checks import check_rounding
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.speculation_checks import check_speculation

MOST_SAMPLES: Final = 1_000_000
"""An iteration holds its samples at once; real runs have thousands."""
MOST_STEPS: Final = 10_000
"""Optimiser steps of an iteration; real runs have tens."""
_NAME = "algorithm.name"
_SMOOTHED: Final = ("sigmoid", "robust")
"""Losses on pairs that can take some for the wrong way round."""


def check_agreement(config: RunConfig) -> Iterator[Problem]:
    """Yields values that contradict each other in one stage whose algorithm is built."""
    if samples_per_iteration(config) > MOST_SAMPLES:
        yield _too_many_samples(config)
        return
    yield from _check_trained_dtypes(config)
    yield from _check_adapters(config)
    yield from _check_kl(config)
    yield from _check_preference_loss(config)
    yield from _check_answer_lengths(config)
    yield from _check_mean_lengths(config)
    yield from check_speculation(config)
    yield from check_rounding(config)
    yield from check_keeping(config)
    yield from _check_mini_batch(config)
    yield from _check_micro_batch(config)
    yield from _check_generation_parts(config)
    yield from check_evaluation(config)
    yield from _check_staleness(config)
    yield from check_placement(config)


def _too_many_samples(config: RunConfig) -> Problem:
    return mistake(
        "training.prompts_per_iteration",
        config.training.prompts_per_iteration,
        f"an iteration would hold {samples_per_iteration(config)} samples at once "
        f"({_origin(config)}).",
        f"Right: at most {MOST_SAMPLES} samples.",
        *_SAMPLE_KEYS,
    )


def _check_trained_dtypes(config: RunConfig) -> Iterator[Problem]:
    for role in spec_of(config).trained:
        origin = role_origin(config, role)
        if origin is None or origin.model.lora is not None:  # the adapters are float32
            continue
        if origin.model.dtype == "bfloat16":
            yield mistake(
                f"model.{origin.role}.dtype",
                "bfloat16",
                f"the {role} that is trained from it would lose small updates in 8 bits.",
                "Right: dtype: float32, with training.precision: bfloat16 for the computation.",
                _NAME,
                f"model.{role}",
            )


def _check_adapters(config: RunConfig) -> Iterator[Problem]:
    spec = spec_of(config)
    for role in spec.models:
        origin = role_origin(config, role)
        if origin is None or origin.role != role or role in spec.trained:
            continue
        if origin.model.lora is not None:
            yield mistake(
                f"model.{role}.lora.rank",
                origin.model.lora.rank,
                f"{spec.name} does not train the {role}.",
                f"Right: for {' and '.join(spec.trained)}.",
                _NAME,
            )


def _check_kl(config: RunConfig) -> Iterator[Problem]:
    algorithm = resolved_algorithm(config.algorithm)
    if not spec_of(config).generates:
        return
    if algorithm.kl_placement == "loss" and algorithm.kl_estimator == "k1":
        yield mistake(
            "algorithm.kl_estimator",
            "k1",
            "as a loss, k1 has an expected gradient of zero and would not hold the policy.",
            "Right: k2 or k3, or algorithm.kl_placement: reward.",
            _NAME,
            "algorithm.kl_placement",
        )
    if algorithm.kl_placement == "loss" and algorithm.kl_target is not None:
        yield mistake(
            "algorithm.kl_target",
            algorithm.kl_target,
            "an adaptive coefficient works on KL in the reward only.",
            "Right: algorithm.kl_placement: reward, or no kl_target.",
            _NAME,
            "algorithm.kl_placement",
        )
    samples = samples_per_iteration(config)
    if algorithm.kl_target is not None and samples >= 5 * algorithm.kl_horizon:
        yield mistake(
            "algorithm.kl_horizon",
            algorithm.kl_horizon,
            f"{samples} samples per iteration could turn the coefficient negative.",
            f"Right: more than {samples // 5}.",
            *_SAMPLE_KEYS,
        )
    if algorithm.kl_coef == 0 and algorithm.kl_target is not None:
        yield mistake(
            "algorithm.kl_target",
            algorithm.kl_target,
            "an adaptive coefficient that starts at kl_coef = 0 stays there.",
            "Right: kl_coef above 0, or no kl_target.",
            "algorithm.kl_coef",
        )


def _check_preference_loss(config: RunConfig) -> Iterator[Problem]:
    algorithm = resolved_algorithm(config.algorithm)
    if algorithm.name == "ipo" and algorithm.loss_type != "ipo":
        yield mistake(
            "algorithm.loss_type",
            algorithm.loss_type,
            "ipo is named after its loss.",
            "Right: no loss_type, or algorithm.name: dpo.",
            _NAME,
        )
    learns_from_pairs = algorithm.name in ("dpo", "ipo")
    if learns_from_pairs and algorithm.label_smoothing and algorithm.loss_type not in _SMOOTHED:
        yield mistake(
            "algorithm.label_smoothing",
            algorithm.label_smoothing,
            f"loss_type {algorithm.loss_type} knows no wrong pairs.",
            f"Right: with loss_type {' or '.join(_SMOOTHED)}.",
            _NAME,
            "algorithm.loss_type",
        )


def _check_answer_lengths(config: RunConfig) -> Iterator[Problem]:
    rollout = config.rollout
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield mistake(
            "rollout.min_new_tokens",
            rollout.min_new_tokens,
            f"more than rollout.max_new_tokens = {rollout.max_new_tokens}.",
            "Right: at most that.",
            "rollout.max_new_tokens",
        )


def _check_mean_lengths(config: RunConfig) -> Iterator[Problem]:
    data, rollout = config.data, config.rollout
    prompt, response = data.mean_prompt_tokens, rollout.mean_new_tokens
    if prompt != "auto" and prompt > data.max_prompt_tokens:
        yield _mean_above("data.mean_prompt_tokens", prompt, "data.max_prompt_tokens")
    if response != "auto" and response > rollout.max_new_tokens:
        yield _mean_above("rollout.mean_new_tokens", response, "rollout.max_new_tokens")


def _mean_above(key: str, mean: float, limit_key: str) -> Problem:
    return mistake(key, mean, f"more than {limit_key}.", "Right: at most that.", limit_key)


def _check_mini_batch(config: RunConfig) -> Iterator[Problem]:
    given, samples = config.training.mini_batch_samples, samples_per_iteration(config)
    if given == "auto" or samples % given == 0:
        yield from _check_steps(config, samples if given == "auto" else given)
        return
    divisors = [size for size in range(1, samples + 1) if samples % size == 0]
    near = sorted(sorted(divisors, key=lambda size: abs(size - given))[:3])
    yield mistake(
        "training.mini_batch_samples",
        given,
        f"does not divide the {samples} samples of an iteration ({_origin(config)}).",
        f"Right: for example {', '.join(str(size) for size in near)}.",
        *_SAMPLE_KEYS,
    )


def _check_steps(config: RunConfig, mini_batch: int) -> Iterator[Problem]:
    """Each step is a task that a plan has to simulate, several times."""
    epochs = config.algorithm.epochs
    steps = epochs * (samples_per_iteration(config) // mini_batch)
    if steps > MOST_STEPS:
        yield mistake(
            "algorithm.epochs",
            epochs,
            f"an iteration would take {steps} optimiser steps ({epochs} times over "
            f"{samples_per_iteration(config)} samples, {mini_batch} a step).",
            f"Right: at most {MOST_STEPS} steps.",
            "training.mini_batch_samples",
            *_SAMPLE_KEYS,
        )


_SAMPLE_KEYS = (_NAME, "training.prompts_per_iteration", "rollout.samples_per_prompt")


def _origin(config: RunConfig) -> str:
    text = f"prompts_per_iteration = {config.training.prompts_per_iteration}"
    if spec_of(config).generates:
        text += f", times samples_per_prompt = {config.rollout.samples_per_prompt}"
    return text


def _check_micro_batch(config: RunConfig) -> Iterator[Problem]:
    training = config.training
    tokens, samples = training.micro_batch_tokens, training.micro_batch_samples
    if samples is not None and tokens != "auto":
        yield mistake(
            "training.micro_batch_samples",
            samples,
            f"given beside training.micro_batch_tokens = {tokens}.",
            "Right: one of the two.",
            "training.micro_batch_tokens",
        )
        return
    mini_batch = batch_sizes(config).mini_batch_samples
    if samples is not None and samples > mini_batch:
        yield mistake(
            "training.micro_batch_samples",
            samples,
            f"more than the mini-batch of {mini_batch} samples that it is a part of.",
            "Right: at most that.",
            "training.mini_batch_samples",
            *_SAMPLE_KEYS,
        )
    item, longest, keys = _longest_item(config)
    if tokens != "auto" and tokens < longest:
        yield mistake(
            "training.micro_batch_tokens",
            tokens,
            f"one {item} may have {longest} tokens ({' + '.join(keys)}).",
            "Right: at least that, or auto.",
            _NAME,
            *keys,
        )


def _longest_item(config: RunConfig) -> tuple[str, int, tuple[str, ...]]:
    """Returns what a micro-batch cannot split, its most tokens, and the keys that they add up."""
    spec = spec_of(config)
    if spec.generates:
        longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
        return "sequence", longest, ("data.max_prompt_tokens", "rollout.max_new_tokens")
    if spec.data == "preferences":
        return "pair", 2 * config.data.max_tokens, ("data.max_tokens", "data.max_tokens")
    return "sequence", config.data.max_tokens, ("data.max_tokens",)


def _check_generation_parts(config: RunConfig) -> Iterator[Problem]:
    parts, prompts = config.rollout.micro_batches, config.training.prompts_per_iteration
    if parts > prompts and spec_of(config).generates:
        yield mistake(
            "rollout.micro_batches",
            parts,
            f"more parts than the {prompts} prompts of an iteration.",
            "Right: at most training.prompts_per_iteration.",
            _NAME,
            "training.prompts_per_iteration",
        )


def _check_staleness(config: RunConfig) -> Iterator[Problem]:
    weights = config.weights
    if weights.sync_every == "auto":
        return
    if spec_of(config).generates and weights.max_staleness < weights.sync_every - 1:
        yield mistake(
            "weights.max_staleness",
            weights.max_staleness,
            f"weights.sync_every = {weights.sync_every} makes samples up to "
            f"{weights.sync_every - 1} iterations stale.",
            f"Right: at least {weights.sync_every - 1}.",
            "weights.sync_every",
        )
