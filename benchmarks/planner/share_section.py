"""What the page says of the devices that a shadow actor should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regret_section import winner, words
from spread import LEVEL, percent, spread_cells, table

from flexrlhf.planning.placement.strategies.guideline import LEAST_SHARE, MOST_SHARE

Row = Mapping[str, Any]


def is_within(row: Row) -> bool:
    """Returns whether the best pools keep to the paper's 30 to 50 %."""
    return LEAST_SHARE <= row["pools"]["share"] <= MOST_SHARE


def cost_of_range(row: Row) -> float | None:
    """Returns how much longer the best pools within the range take; None where none fit."""
    seconds = row["pools"]["within_seconds"]
    return None if seconds is None else seconds / row["pools"]["seconds"] - 1


def share_section(rows: Sequence[Row]) -> Iterator[str]:
    """Returns the section."""
    held = [row for row in rows if row["pools"] is not None]
    wins = [row for row in held if row["pools"]["wins"]]
    yield from [
        "## The share of devices that generates",
        "",
        "The paper gives 30 to 50 % of the devices to the shadow actor. For each request of the"
        f" grid in which pools fit ({len(held)}), this is the share in the best disaggregated plan,"
        " and what it costs to keep to the range. Shares are tried in steps of an eighth to a"
        " sixteenth of the devices, and where the kind of device changes.",
        "",
        *table(
            (
                "cases",
                "in all",
                "below 30 %",
                "30 to 50 %",
                "above 50 %",
                "range costs 3 %",
            ),
            [_counts(name, found) for name, found in _groups(held, wins)],
        ),
        "![Best share of devices that generate](images/planner-study/shares.svg)",
        "",
    ]
    outside = [row for row in held if not is_within(row)]
    costs = [cost for row in outside if (cost := cost_of_range(row)) is not None]
    median, most, largest = spread_cells(costs)
    yield from [
        f"The best share leaves the range in {len(outside)} of {len(held)} cases. Keeping to it"
        f" there costs {median} in the median, {most} at the 90th percentile and {largest} at"
        " most.",
        "",
        *table(
            ("case", "what", "best share", "the range costs", "pools are the best plan"),
            [_line(rows, row) for row in sorted(outside, key=_order)],
        ),
    ]


def _groups(held: Sequence[Row], wins: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    yield "pools fit", held
    yield "pools are the best plan", wins
    for staleness, name in ((0, "synchronous"), (1, "one round stale")):
        yield name, [row for row in held if row["case"]["staleness"] == staleness]
    for speedup in sorted({row["case"]["speedup"] for row in held}):
        yield f"rollout.speedup {speedup}", [r for r in held if r["case"]["speedup"] == speedup]
    for answer in sorted({row["case"]["answer"] for row in held}):
        yield f"{answer} tokens", [row for row in held if row["case"]["answer"] == answer]
    yield "alike devices", [row for row in held if "+" not in row["case"]["pool"]]
    yield "unlike devices", [row for row in held if "+" in row["case"]["pool"]]


def _counts(name: str, rows: Sequence[Row]) -> tuple[object, ...]:
    below = sum(row["pools"]["share"] < LEAST_SHARE for row in rows)
    above = sum(row["pools"]["share"] > MOST_SHARE for row in rows)
    costs = [cost_of_range(row) for row in rows]
    dear = sum(cost is None or cost >= LEVEL for cost in costs)
    return name, len(rows), below, len(rows) - below - above, above, dear


def _order(row: Row) -> float:
    cost = cost_of_range(row)
    return -(float("inf") if cost is None else cost)


def _line(rows: Sequence[Row], row: Row) -> tuple[object, ...]:
    cost = cost_of_range(row)
    said = "does not fit" if cost is None else percent(cost)
    is_best = "yes" if winner(row) == "disaggregated" else "no"
    return rows.index(row), words(row), percent(row["pools"]["share"]), said, is_best
