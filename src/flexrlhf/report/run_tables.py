"""Tables of a run: its plan, its batch sizes in words, and the machine it ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.report.formats import format_value
from flexrlhf.report.markup import Html, element, join, table
from flexrlhf.report.run_folder import RunRecord, setting

_PLAN_WORDS = {
    "devices": "devices",
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "data_parallel": "data parallel",
    "zero_stage": "ZeRO stage",
    "offload": "offload",
    "micro_batch_samples": "micro-batch, samples",
    "micro_batch_tokens": "micro-batch, tokens",
}


def plan_table(plan: Mapping[str, Any]) -> Html | None:
    """Returns where each role sits, of the first plan in plan.json; None where it has none."""
    plans = plan.get("plans")
    chosen = plans[0] if isinstance(plans, list) and plans else plan
    placement = chosen.get("placement") if isinstance(chosen, Mapping) else None
    if not isinstance(placement, Mapping):
        return None
    roles = {role: value for role, value in placement.items() if isinstance(value, Mapping)}
    present = {key: None for value in roles.values() for key in value}
    columns = [key for key in _PLAN_WORDS if key in present]
    columns += [key for key in present if key not in _PLAN_WORDS]
    header = ["role", *(_PLAN_WORDS.get(key, key.replace("_", " ")) for key in columns)]
    rows = (
        [role, *(format_value(value.get(key)) for key in columns)] for role, value in roles.items()
    )
    return join([_plan_words(chosen), table(header, rows)])


def batch_size_table(record: RunRecord) -> Html | None:
    """Returns the words for batch sizes with the values of this run; None where it has none."""
    rows = [row for row in _batch_sizes(record.config) if row[1] != "–"]
    return table(("word", "this run", "meaning"), rows, class_="words") if rows else None


def environment_table(environment: Mapping[str, Any]) -> Html | None:
    """Returns versions, machine and command; None where they are not known."""
    rows = [(key, format_value(value)) for key, value in _flat(environment, "")]
    return table(("what", "value"), rows, class_="words") if rows else None


def _plan_words(plan: Mapping[str, Any]) -> Html:
    words = f"Strategy {plan.get('strategy', 'unknown')}"
    if plan.get("chosen_by"):
        words += f", chosen by {plan['chosen_by']}"
    if plan.get("bound_by"):
        words += f", bound by {plan['bound_by']}"
    return element("p", f"{words}. {plan.get('why') or ''}".strip(), class_="quiet")


def _batch_sizes(config: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    prompts = setting(config, "training.prompts_per_iteration")
    answers = setting(config, "rollout.samples_per_prompt") if _generates(config) else 1
    mini_batch = setting(config, "training.mini_batch_samples")
    epochs = setting(config, "algorithm.epochs")
    samples = _product(prompts, answers)
    mini_batches = _quotient(samples, mini_batch)
    if _generates(config):
        yield "prompts per iteration", format_value(prompts), "Prompts drawn for one iteration."
        yield (
            "samples per prompt",
            format_value(answers),
            "Answers to each prompt: the group, where an algorithm compares answers.",
        )
    meaning = "Prompts × samples per prompt" if _generates(config) else "Rows of data, or pairs"
    yield "samples per iteration", format_value(samples), f"{meaning}: what one iteration takes."
    yield (
        "mini-batch",
        format_value(mini_batch),
        "Samples (not prompts) of one optimiser step, over all devices.",
    )
    yield (
        "mini-batches per epoch",
        format_value(mini_batches),
        "Samples per iteration ÷ mini-batch.",
    )
    yield "epochs", format_value(epochs), "Passes over the samples of an iteration."
    yield (
        "optimiser steps per iteration",
        format_value(_product(mini_batches, epochs)),
        "Mini-batches per epoch × epochs.",
    )
    yield from _micro_batch(config)


def _micro_batch(config: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    meaning = "What one forward and backward pass holds at once; it never changes the result."
    for unit in ("tokens", "samples"):
        value = setting(config, f"training.micro_batch_{unit}")
        if value is not None:
            yield "micro-batch", f"{format_value(value)} {unit}", meaning
    if _generates(config):
        limits = (("data.max_prompt_tokens", "prompt"), ("rollout.max_new_tokens", "answer"))
        for key, what in limits:
            value = setting(config, key)
            words = f"{format_value(value)} tokens" if value is not None else "–"
            yield f"longest {what}", words, f"A {what} has at most so many."


def _generates(config: Mapping[str, Any]) -> bool:
    """Whether the model answers prompts; an algorithm that is not known is taken to."""
    try:
        return algorithm_spec(str(setting(config, "algorithm.name", ""))).generates
    except ConfigError:
        return True


def _product(*factors: Any) -> int | None:
    result = 1
    for factor in factors:
        if not isinstance(factor, int):
            return None
        result *= factor
    return result


def _quotient(samples: int | None, mini_batch: Any) -> int | None:
    """Mini-batches that the samples make; the last may be smaller."""
    if samples is None or not isinstance(mini_batch, int) or mini_batch < 1:
        return None
    return -(-samples // mini_batch)


def _flat(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def stage_overview(stages: Iterable[RunRecord], cells: Iterable[tuple[str, ...]]) -> Html:
    """Returns one row per stage of a run of several stages."""
    rows = [
        (stage.name, stage.algorithm or "–", stage.progress, *cell)
        for stage, cell in zip(stages, cells, strict=True)
    ]
    return table(("stage", "algorithm", "iterations", "result", "time"), rows, class_="overview")
