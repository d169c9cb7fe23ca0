"""The page of the study, from its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crossover_section import crossover_section
from growth_section import growth_section
from regret_section import guideline_regret, regret_section, winner, words
from share_section import share_section
from spread import percent, table
from summary_section import summary_section


def markdown(numbers: Mapping[str, Any]) -> str:
    """Returns the page, with the parts that there are."""
    lines = [
        "# The planner, studied",
        "",
        "`make planner-study` writes this page and its pictures, in some minutes. Every iteration"
        " time on it is **simulated**: tasks of a plan on a virtual clock, with the shipped"
        " constants; how far such times are from measured ones stands in"
        " [planner-accuracy.md](planner-accuracy.md). Only the section on the time of planning is"
        " measured.",
        "",
        *summary_section(numbers),
    ]
    if "regret" in numbers:
        lines += [*regret_section(numbers["regret"]), *share_section(numbers["regret"])]
    if "crossover" in numbers:
        lines += crossover_section(numbers["crossover"])
    if "growth" in numbers:
        lines += growth_section(numbers["growth"])
    if "regret" in numbers:
        lines += _every_case(numbers["regret"])
    return "\n".join(lines).rstrip() + "\n"


def _every_case(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ["## Every case of the grid", ""]
    header = ("case", "what", "best", "s/iteration", "the rule says", "regret", "best share")
    yield from table(header, (_line(place, row) for place, row in enumerate(rows)))


def _line(place: int, row: Mapping[str, Any]) -> tuple[object, ...]:
    fitting = [seconds for seconds in row["seconds"].values() if seconds is not None]
    if not fitting:
        return place, words(row), "nothing fits", "-", row["guideline"]["strategy"], "-", "-"
    cost = guideline_regret(row)
    return (
        place,
        words(row),
        winner(row),
        f"{min(fitting):.4g}",
        row["guideline"]["strategy"],
        "does not fit" if cost is None else percent(cost),
        percent(row["pools"]["share"] if row["pools"] else None),
    )
