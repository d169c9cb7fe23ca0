"""The page of our own runs in one process: what was predicted, what was measured, how steadily."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

Row = Mapping[str, Any]

_TIME: Final = (-0.15, 0.15)
_MEMORY: Final = (-0.05, 0.10)
"""Least and largest error that a goal allows."""


def own_runs_page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    runs = _by_run(document["rows"])
    rounds = document["rounds"]
    lines = [
        "# Our own runs, predicted and measured",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on"
        f" {document['at']}: {document['machine']}, {document['threads']} threads, torch"
        f" {document['torch']}, commit {document['commit']}.",
        "`flexrlhf profile --no-workers` measured the constants; no run of an example has a part"
        " in them.",
        "",
        f"There were {rounds} rounds; in each, profiles and runs took turns, so that every run has"
        " a profile before and one after it. Measured is the median of the iterations after the"
        " first, by `metrics.jsonl`; memory is the peak of the whole process. *Before* is what the"
        " run wrote into `plan.json` before its first iteration, with the answers' lengths that"
        " the config expects. *Known lengths* takes the lengths that the answers then had, and the"
        " mean of the profiles before and after the run. An error above 0 means that the"
        " prediction is too large. All numbers are medians over the rounds, an error is the median"
        " of the rounds' errors, with the least and the most. Both predictions are simulated. Each"
        " round is in [own-runs.json](own-runs.json).",
        "",
        "| run | what | measured | before | error | known lengths | error |",
        "|---|---|---|---|---|---|---|",
        *(_line(name, what, rows) for (name, what), rows in runs.items()),
        "",
        "## Goals",
        "",
        *(
            _goal(name, what, rows)
            for (name, what), rows in runs.items()
            if what in ("iteration", "peak memory")
        ),
        "",
        *_steadiness(document["constants"]),
    ]
    return "\n".join(lines) + "\n"


def own_goals(document: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Returns each goal as what it is on, the goal, what is reached, and whether it is met."""
    found: list[tuple[str, str, str, bool]] = []
    for what, name, goal in (
        ("iteration", "step time of our own runs in one process", "within 15 %"),
        ("peak memory", "memory of the same", "within 10 %, never optimistic by more than 5 %"),
    ):
        runs = [rows for (_, kind), rows in _by_run(document["rows"]).items() if kind == what]
        met = sum(_is_met(what, statistics.median(_goal_errors(rows))) for rows in runs)
        reached = f"{met} of {len(runs)}, medians of {document['rounds']} rounds"
        found.append((name, goal, reached, met == len(runs)))
    return found


def _by_run(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row["run"], row["what"]), []).append(row)
    return runs


def _line(name: str, what: str, rows: Sequence[Row]) -> str:
    unit = "GiB" if what == "peak memory" else "s"
    cells = [name, what, f"{statistics.median(row['measured'] for row in rows):.3g} {unit}"]
    for key in ("before", "known"):
        values = [row[key] for row in rows if row[key] is not None]
        if values:
            cells += f"{statistics.median(values):.3g} {unit}", _spread(_errors(rows, key), 0)
        else:
            cells += "–", "–"
    return f"| {' | '.join(cells)} |"


def _errors(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] / row["measured"] - 1 for row in rows if row[key] is not None]


def _goal_errors(rows: Sequence[Row]) -> list[float]:
    """Returns the errors that count: with known lengths, where anything is generated."""
    return _errors(rows, "known") or _errors(rows, "before")


def _is_met(what: str, error: float) -> bool:
    least, most = _TIME if what == "iteration" else _MEMORY
    return least <= error <= most


def _spread(errors: Sequence[float], digits: int) -> str:
    middle, least, most = (
        f"{100 * error:+.{digits}f}"
        for error in (statistics.median(errors), min(errors), max(errors))
    )
    return f"{middle} % ({least} to {most})"


def _goal(name: str, what: str, rows: Sequence[Row]) -> str:
    """Says whether a goal is met: 15 % of the iteration, memory within 10 % and 5 % below."""
    errors = _goal_errors(rows)
    inside = sum(_is_met(what, error) for error in errors)
    verdict = "met" if _is_met(what, statistics.median(errors)) else "missed"
    goal = "within 15 %" if what == "iteration" else "from -5 % to +10 %"
    return (
        f"- {name}, {what}: {_spread(errors, 1)}, goal {goal}, inside in {inside} of {len(errors)}"
        f" rounds: {verdict}."
    )


def _steadiness(constants: Mapping[str, Sequence[float]]) -> list[str]:
    """Says how far profiles differ that follow each other on the same machine."""
    return [
        "## How steady the machine is",
        "",
        "No prediction can be better than the difference between two profiles of the same machine.",
        "",
        "| constant | profiles | median | least | most | largest change from one to the next |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {len(values)} | {statistics.median(values):.3g} | {min(values):.3g} |"
            f" {max(values):.3g} | {max(abs(b / a - 1) for a, b in pairwise(values)):.0%} |"
            for name, values in constants.items()
        ),
    ]
