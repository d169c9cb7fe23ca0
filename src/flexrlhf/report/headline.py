"""The handful of figures that say how a run went."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from flexrlhf.report.formats import format_bytes, format_number, format_seconds
from flexrlhf.report.run_folder import RunRecord
from flexrlhf.report.series import evaluation_keys, series

_NO_HEADLINE = ("eval/response_tokens",)


@dataclass(frozen=True, slots=True)
class Card:
    """One figure, large, with its name above and a remark below."""

    label: str
    value: str
    unit: str = ""
    remark: str = ""


def headline_cards(record: RunRecord) -> list[Card]:
    """Returns the cards whose metrics this run has."""
    evaluations = [key for key in evaluation_keys(record.metrics) if key not in _NO_HEADLINE]
    cards = [
        Card("Algorithm", record.algorithm or "unknown", remark=_models(record)),
        _iterations_card(record),
        _change_card(record, "Reward", "reward/mean"),
        _change_card(record, "KL to reference", "kl/mean", unit="nats per token"),
        _change_card(record, "Preference accuracy", "accuracy/preference", unit="%", scale=100),
        _change_card(record, "Preference loss", "loss/preference"),
        _change_card(record, "Implicit reward margin", "implicit_reward/margin", unit="nats"),
        _change_card(record, "Supervised loss", "loss/supervised", unit="nats"),
        *(_change_card(record, evaluation_title(key), key) for key in evaluations[:3]),
        _time_card(record),
        _throughput_card(record),
        _peak_card(record),
    ]
    return [card for card in cards if card is not None]


def evaluation_title(key: str) -> str:
    """Returns `eval/win_rate` as a title: `Evaluation: win rate`."""
    name = key.removeprefix("eval/").replace("_", " ").replace("/", ", ")
    return f"Evaluation: {name}"


def _models(record: RunRecord) -> str:
    models = record.config.get("model")
    given = models.items() if isinstance(models, dict) else ()
    return ", ".join(role for role, model in given if model)


def _iterations_card(record: RunRecord) -> Card:
    samples = series(record.metrics, "samples")
    remark = f"{format_number(sum(samples.values))} samples" if samples else ""
    return Card("Iterations", record.progress, remark=remark)


def _change_card(
    record: RunRecord, label: str, key: str, *, unit: str = "", scale: float = 1.0
) -> Card | None:
    found = series(record.metrics, key, scale=scale)
    if found is None:
        return None
    value = f"{format_number(found.first)} → {format_number(found.last)}"
    if len(unit) > 1:  # too long to stand beside two numbers
        return Card(label, value, remark=f"{unit}, first → last")
    return Card(label, value, unit, "first → last")


def _time_card(record: RunRecord) -> Card | None:
    found = series(record.metrics, "time/iteration_s")
    if found is None:
        return None
    value, unit = format_seconds(median(found.values)).split(" ")
    total = format_seconds(sum(found.values))
    return Card("Time per iteration", value, unit, f"median; {total} in all")


def _throughput_card(record: RunRecord) -> Card | None:
    samples = series(record.metrics, "throughput/samples_per_s")
    tokens = series(record.metrics, "throughput/tokens_per_s")
    if samples is None:
        return None
    remark = f"median; {format_number(median(tokens.values))} tokens/s" if tokens else "median"
    return Card("Throughput", format_number(median(samples.values)), "samples/s", remark)


def _peak_card(record: RunRecord) -> Card | None:
    found = series(record.metrics, "memory/peak_bytes")
    if found is None:
        return None
    value, unit = format_bytes(max(found.values)).split(" ")
    return Card("Peak memory", value, unit, "highest iteration")
