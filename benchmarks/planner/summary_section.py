"""The few sentences that stand first on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crossover import MODELS, TRAINED
from crossover_section import MODES, RIVALS, crossing, is_win, of_group
from growth_section import goal_words
from regret_section import FIXED, best_seconds, guideline_regret, regret
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
            f"- The plan of the paper's rule of thumb fits in {len(costs)} of {len(fitting)}"
            f" requests that some plan fits. There its iterations are longer than the best by"
            f" {percent(spread.median)} in the median, {percent(spread.most)} at the 90th"
            f" percentile and {percent(spread.largest)} at most; it is level with the best in"
            f" {sum(cost < LEVEL for cost in costs)}."
        )
    yield from _fixed(fitting)


def _fixed(fitting: Sequence[Row]) -> Iterator[str]:
    """The fixed strategy that fits most often and costs least at the 90th percentile."""
    costs = {
        name: [v for row in fitting if (v := regret(row, row["seconds"].get(name))) is not None]
        for name in FIXED
    }
    spreads = {name: spread for name in FIXED if (spread := Spread.of(costs[name]))}
    if not spreads:
        return
    best = min(spreads, key=lambda name: (-len(costs[name]), spreads[name].most))
    yield (
        f"- `{best}` in all of them would fit in {len(costs[best])} and cost"
        f" {percent(spreads[best].median)} in the median, {percent(spreads[best].most)} at the 90th"
        f" percentile and {percent(spreads[best].largest)} at most."
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
            f" {fair.name}; level with it in {against_fair.count('level')}."
        )


def _wins(said: Sequence[str]) -> int:
    return sum(map(is_win, said))
