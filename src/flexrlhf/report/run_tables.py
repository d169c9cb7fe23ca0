"""Tables of a run: its plan, its batch sizes in words, and the machine it ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flexrlhf.report.batch_words import batch_words
from flexrlhf.report.formats import format_value
from flexrlhf.report.markup import Html, element, join, table
from flexrlhf.report.run_folder import RunRecord

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
    rows = batch_words(record.config)
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
