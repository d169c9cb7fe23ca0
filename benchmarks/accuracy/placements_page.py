"""The page of measured placements, and its part of the page about the planner's accuracy."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

AUTO: Final = "auto: "
"""Begins the name of what `placement: auto` chose."""
RESULT: Final = Path(__file__).parents[2] / "docs" / "results" / "placements.json"
_MEDIAN_GOAL: Final = 0.15
_REGRET_GOAL: Final = 0.05
_SHARE_GOAL: Final = 0.05
_SMALL: Final = 0.05
"""Part of an iteration below which a stage's error says nothing."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Regret:
    """How much slower the chosen plan is than the fastest that was measured."""

    job: str
    workers: int
    chosen: Row
    best: Row

    @property
    def value(self) -> float:
        """0 where the fastest was chosen."""
        return self.chosen["measured_s"] / self.best["measured_s"] - 1


def placement_results() -> Mapping[str, Any] | None:
    """Returns what `make placements` wrote last; None where it never did."""
    return json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else None


def median_error(rows: Sequence[Row]) -> float:
    """Returns the median of the errors' sizes."""
    return statistics.median(abs(row["error"]) for row in rows)


def chosen_in(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of what `placement: auto` chose."""
    return [row for row in rows if row["name"].startswith(AUTO)]


def rivals_of(chosen: Row, rows: Sequence[Row]) -> list[Row]:
    """Returns what `auto` chose and could have chosen: rows without stale weights."""
    return [
        row
        for row in rows
        if (row["job"], row["workers"]) == (chosen["job"], chosen["workers"])
        and row["max_staleness"] == 0
    ]


def regrets(rows: Sequence[Row]) -> list[Regret]:
    """Returns the regret of `auto` per job and number of workers, without stale weights."""
    found: list[Regret] = []
    for chosen in chosen_in(rows):
        best = min(rivals_of(chosen, rows), key=lambda row: row["measured_s"])
        found.append(Regret(chosen["job"], chosen["workers"], chosen, best))
    return found


def placement_goals(document: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Returns what was to be reached: on what, the goal, what is reached, whether it is met."""
    rows = document["rows"]
    median, found = median_error(rows), regrets(rows)
    goals = [
        (
            f"{len(rows)} placements of two small jobs measured here",
            "median error of an iteration 15 %",
            f"{median:.1%}",
            median <= _MEDIAN_GOAL,
        )
    ]
    if rows and "driver_share" in rows[0]:
        goals += _share_goals(rows)
    if found:
        worst = max(regret.value for regret in found)
        goals.append(
            (
                "regret of `auto` on them",
                "5 %",
                f"at most {worst:.1%}",
                worst <= _REGRET_GOAL,
            )
        )
    return goals


def _share_goals(rows: Sequence[Row]) -> list[tuple[str, str, str, bool]]:
    """Returns the goals for what the driver costs, and for what scoring waits for."""
    driver = statistics.median(row["driver_share"] for row in rows)
    interleaved = [row["exposed_share"] for row in rows if row["name"] == "interleaved"]
    exposed = max(interleaved, default=0.0)
    return [
        (
            "time in which no worker does anything, median",
            "under 5 % of an iteration",
            f"{driver:.1%}",
            driver < _SHARE_GOAL,
        ),
        (
            "samples and scores on their way while nothing is computed, interleaved",
            "at most 5 % of scoring",
            f"at most {exposed:.1%}",
            exposed <= _SHARE_GOAL,
        ),
    ]


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    parts = [
        "# Placements, predicted and measured",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on {document['at']}:"
        f" {document['machine']}, commit {document['commit']}; profile of"
        f" {document['profiled_at']}.",
        "",
        "Each placement trains for a few iterations on two or four processes with a thread each, "
        "all of them on the machine's two cores; measured is the median of the iterations after "
        "the first, and where there were several *runs* the median of theirs: what might be the "
        "fastest of its job and number of workers ran again, in turns with what `auto` chose. "
        "Predicted is simulated before the first run with the constants of `flexrlhf "
        "profile`, in which no placement has a part, and with the lengths that the config "
        "expects. Four processes share two cores, so that here more workers are not faster. "
        "*Others* is the part of the machine that other programs used meanwhile: while they do, "
        "runs are slower than any prediction. *Driver* is the part of an iteration in which no "
        "worker does anything, *exposed* what moves between workers while the one that waits for "
        "it computes nothing, by the time of scoring.",
        *_remarks(document),
        "",
        *_goal_lines(document),
        "",
        "| job | workers | placement | runs | measured | from, to | predicted | error | others |"
        " driver | exposed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row_line(row) for row in document["rows"]),
        "",
        *_regret_lines(document["rows"]),
        "",
        *_stage_lines(document["rows"]),
    ]
    return "\n".join(parts) + "\n"


def placement_section(document: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the page about the planner's accuracy."""
    rows = document["rows"]
    by_strategy: dict[str, list[Row]] = {}
    for row in rows:
        by_strategy.setdefault(row["strategy"], []).append(row)
    return [
        "## Placements of two small jobs, measured here",
        "",
        f"`make placements` ran {len(rows)} placements of a PPO with four models and of a GRPO on "
        "several processes of one machine, after `flexrlhf profile`; "
        "[placements.md](results/placements.md) has each of them.",
        "",
        "| strategy | placements | median error | largest |",
        "|---|---|---|---|",
        *(
            f"| {name} | {len(held)} | {median_error(held):.0%} |"
            f" {max((row['error'] for row in held), key=abs):+.0%} |"
            for name, held in by_strategy.items()
        ),
        "",
        *_regret_lines(rows),
        *_remarks(document),
        "",
    ]


def _remarks(document: Mapping[str, Any]) -> list[str]:
    remark = document.get("remark")
    return ["", remark] if remark else []


def _goal_lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| on | goal | reached | met |"
    yield "|---|---|---|---|"
    for on, goal, reached, is_met in placement_goals(document):
        yield f"| {on} | {goal} | {reached} | {'yes' if is_met else '**no**'} |"


def _row_line(row: Row) -> str:
    return (
        f"| {row['job']} | {row['workers']} | {row['name']} | {row.get('runs', 1)} |"
        f" {row['measured_s']:.2f} s | {row['fastest_s']:.2f} to {row['slowest_s']:.2f} s |"
        f" {row['predicted_s']:.2f} s | {row['error']:+.0%} | {_share(row, 'others_share')} |"
        f" {_share(row, 'driver_share')} | {_share(row, 'exposed_share')} |"
    )


def _share(row: Row, name: str) -> str:
    share = row.get(name)
    return "not counted" if share is None else f"{share:.0%}"


def _regret_lines(rows: Sequence[Row]) -> Iterator[str]:
    for regret in regrets(rows):
        name = regret.chosen["name"].removeprefix(AUTO)
        yield (
            f"- {regret.job} on {regret.workers} workers: `auto` chose {name}, "
            f"{regret.chosen['measured_s']:.2f} s; the fastest measured is "
            f"{regret.best['name']}, {regret.best['measured_s']:.2f} s: regret {regret.value:.1%}."
        )


def _stage_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Says per stage how far predictions are off, where the stage takes any time."""
    yield "| stage | placements | median error | from | to |"
    yield "|---|---|---|---|---|"
    for stage in rows[0]["stages"] if rows else ():
        errors = [
            predicted / measured - 1
            for row in rows
            for measured, predicted in [row["stages"][stage]]
            if measured > _SMALL * row["measured_s"]
        ]
        if errors:
            median = statistics.median(map(abs, errors))
            spread = f"{min(errors):+.0%} | {max(errors):+.0%}"
            yield f"| {stage} | {len(errors)} | {median:.0%} | {spread} |"
