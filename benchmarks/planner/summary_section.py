"""The few sentences that stand first on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crossover import MODELS, TRAINED
from crossover_section import MODES, RIVALS, crossing, of_group
from growth_section import goal_words
from regret_section import best_seconds, guideline_regret
from share_section import is_within
from spread import LEVEL, Spread, percent

Row = Mapping[str, Any]


def summary_section(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Returns what each part comes to, in a sentence or two."""
    if "regret" in numbers:
        yield from _rule(numbers["regret"])
        yield from _shares(numbers["regret"])
    if "crossover" in numbers:
        yield from _crossovers(numbers["crossover"])
    if "growth" in numbers:
        yield f"- {goal_words(numbers['growth']['sizes'])}"
    yield ""


def _rule(rows: Sequence[Row]) -> Iterator[str]:
    fitting = [row for row in rows if best_seconds(row) is not None]
    costs = [value for row in fitting if (value := guideline_regret(row)) is not None]
    if spread := Spread.of(costs):
        yield (
            f"- The paper's rule of thumb costs {percent(spread.median)} of the iteration time in"
            f" the median of {len(fitting)} requests, {percent(spread.most)} at the 90th percentile"
            f" and {percent(spread.largest)} at most; in {len(fitting) - len(costs)} its plan does"
            f" not fit where another does. It is level with the best in"
            f" {sum(cost < LEVEL for cost in costs)}."
        )


def _shares(rows: Sequence[Row]) -> Iterator[str]:
    held = [row for row in rows if row["pools"] is not None]
    wins = [row for row in held if row["pools"]["wins"]]
    outside = [sum(not is_within(row) for row in found) for found in (held, wins)]
    yield (
        f"- The best share of devices that generate leaves 30 to 50 % in {outside[0]} of"
        f" {len(held)} requests, and in {outside[1]} of the {len(wins)} whose best plan has pools."
    )


def _crossovers(rows: Sequence[Row]) -> Iterator[str]:
    groups = [of_group(rows, model, trained) for model in MODELS for trained in TRAINED]
    weak, fair = RIVALS[0], RIVALS[-1]
    for mode in MODES:
        against_weak = [crossing(held, weak, mode) for held in groups]
        against_fair = [crossing(held, fair, mode) for held in groups]
        yield (
            f"- {mode.capitalize()}, disaggregation wins in the end in {_wins(against_weak)} of"
            f" {len(groups)} settings over {weak.name}, and in {_wins(against_fair)} over"
            f" {fair.name}."
        )


def _wins(said: Sequence[str]) -> int:
    return sum(word not in ("never", "no plan") for word in said)
