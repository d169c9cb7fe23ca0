"""The page of the largest batches under an enforced budget of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]

GOAL: Final = 0.1


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    rows: Sequence[Row] = document["rows"]
    parts = [
        "# Largest batch under a budget of memory",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on {document['at']}:"
        f" {document['machine']}, commit {document['commit']}; profile of"
        f" {document['profiled_at']}. When it began, {document['load']:.1f} tasks were running on"
        f" {document['cores']} cores, which costs time and no memory.",
        "",
        "PPO on two processes with small trained models and large frozen ones. Each process may add"
        f" {document['mbytes']:g} MB to what a worker with tiny models holds. The system enforces"
        " it (RLIMIT_DATA), and a batch that does not fit ends the run. A batch is what a worker"
        " generates, scores and trains on in one pass, in samples. *Colocated*: every process holds"
        " all four models. *Interleaved*: the reference is on one, the reward model on the other."
        f" A run has {document['iterations']} iterations, and writes the trained models at the end."
        " *Predicted* is the plan's `max_batch` for devices of this memory, found before the first"
        " run.",
        "",
        "| placement | predicted | largest that ran | error | goal | met | smallest that did not |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, document["iterations"]) for row in rows),
    ]
    if len(rows) > 1:
        parts += [
            "",
            f"Interleaved holds a batch **{_factor(rows, 'measured'):.2f} times as large** as"
            f" colocated; predicted were {_factor(rows, 'predicted'):.2f}.",
        ]
    return "\n".join(parts) + "\n"


def _factor(rows: Sequence[Row], key: str) -> float:
    return rows[1][key] / rows[0][key]


def _line(row: Row, iterations: int) -> str:
    error = row["predicted"] / row["measured"] - 1
    when = f"in iteration {row['failed_after'] + 1}"
    if row["failed_after"] == iterations:
        when = "while it wrote its models"
    met = "yes" if abs(error) <= GOAL else "**no**"
    return (
        f"| {row['placement']} | {row['predicted']} | {row['measured']} | {error:+.0%} | {GOAL:.0%}"
        f" | {met} | {row['failed']}, {when} |"
    )
