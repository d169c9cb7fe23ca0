"""The short table that ends a run in the terminal: first, last and best value of what matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from flexrlhf.report.formats import format_bytes, format_number, format_percent, format_seconds
from flexrlhf.report.run_folder import RunRecord
from flexrlhf.report.series import evaluation_keys, series

_CHANGES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("reward", "reward/mean", format_number),
    ("KL to reference (nats per token)", "kl/mean", format_number),
    ("preference accuracy", "accuracy/preference", format_percent),
    ("preference loss", "loss/preference", format_number),
    ("implicit reward margin", "implicit_reward/margin", format_number),
    ("supervised loss", "loss/supervised", format_number),
    ("value loss", "loss/value", format_number),
    ("response tokens", "response_tokens/mean", format_number),
)


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of the table; `first` is empty for what has one value for the whole run."""

    stage: str
    """Name of the stage; empty for a run of one stage."""
    label: str
    first: str
    last: str


def summary_rows(record: RunRecord) -> list[SummaryRow]:
    """Returns the rows of a run, or of each of its stages in order."""
    if record.stages:
        return [row for stage in record.stages for row in _stage_rows(stage, stage.name)]
    return _stage_rows(record, "")


def summary_text(record: RunRecord) -> str:
    """Returns the rows as aligned plain text, without an end of line at the end."""
    rows = summary_rows(record)
    cells = [(f"{row.stage} {row.label}".strip(), row.first, row.last) for row in rows]
    cells = [("", "first", "last"), *cells]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        f"{label:<{widths[0]}}  {first:>{widths[1]}}  {last:>{widths[2]}}"
        for label, first, last in cells
    )


def _stage_rows(record: RunRecord, stage: str) -> list[SummaryRow]:
    rows = [SummaryRow(stage, "iterations", "", record.progress)]
    evaluations = [
        (f"evaluation {key.removeprefix('eval/')}", key, format_number)
        for key in evaluation_keys(record.metrics)
    ]
    for label, key, written in (*_CHANGES, *evaluations):
        found = series(record.metrics, key)
        if found is not None:
            rows.append(SummaryRow(stage, label, written(found.first), written(found.last)))
    return rows + _cost_rows(record, stage)


def _cost_rows(record: RunRecord, stage: str) -> list[SummaryRow]:
    rows: list[SummaryRow] = []
    seconds = series(record.metrics, "time/iteration_s")
    if seconds is not None:
        middle, total = format_seconds(median(seconds.values)), format_seconds(sum(seconds.values))
        rows.append(SummaryRow(stage, "time per iteration (median)", "", middle))
        rows.append(SummaryRow(stage, "time of all iterations", "", total))
    peak = series(record.metrics, "memory/peak_bytes")
    if peak is not None:
        rows.append(SummaryRow(stage, "peak memory", "", format_bytes(max(peak.values))))
    return rows
