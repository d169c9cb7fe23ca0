"""What the page says of the paper's rule of thumb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cases import DIMENSIONS
from spread import LEVEL, Spread, listed, percent, spread_cells, table

Row = Mapping[str, Any]
FIXED: Final = ("colocated", "interleaved_1", "disaggregated")
"""Strategies that one could always take, to compare the rule with."""
_WORST: Final = 10
_UNITS: Final = {
    "answer": "longest answer, tokens",
    "batch": "samples per device",
    "speedup": "rollout.speedup",
    "staleness": "weights.max_staleness",
    "pool": "devices are",
    "devices": "number of devices",
    "reward": "reward model of the actor's size",
    "model": "actor",
}


def best_seconds(row: Row) -> float | None:
    """Returns the shortest iteration of a case; None where nothing fits."""
    return min((s for s in row["seconds"].values() if s is not None), default=None)


def winner(row: Row) -> str:
    """Returns the strategy with the shortest iteration of a case in which something fits."""
    fitting = {name: s for name, s in row["seconds"].items() if s is not None}
    return min(fitting, key=lambda name: fitting[name])


def regret(row: Row, seconds: float | None) -> float | None:
    """Returns how much longer than the best an iteration takes; None where it cannot be said."""
    best = best_seconds(row)
    return None if best is None or seconds is None else seconds / best - 1


def guideline_regret(row: Row) -> float | None:
    """Returns what the rule of thumb costs in a case; None where its plan does not fit."""
    return regret(row, row["guideline"]["seconds"])


def words(row: Row) -> str:
    """Returns a case in a line."""
    case = row["case"]
    size = "" if case["reward"] == "equal" else ", small reward"
    fast = "" if case["speedup"] == 1 else f", generation x{case['speedup']}"
    stale = "" if case["staleness"] == 0 else ", one round stale"
    return (
        f"{case['algorithm']} {case['model']} {case['trained']}, {case['devices']} {case['pool']}, "
        f"{case['answer']} tokens, batch {case['batch']}{size}{fast}{stale}"
    )


def regret_section(rows: Sequence[Row]) -> Iterator[str]:
    """Returns the section."""
    fitting = [row for row in rows if best_seconds(row) is not None]
    yield from _introduction(rows, fitting)
    yield from _rules(fitting)
    yield from ["![What rules of thumb cost](images/planner-study/regret.svg)", ""]
    yield from _branches(fitting)
    yield from _by_dimension(fitting)
    yield from _unfit(rows, fitting)
    yield from _worst(rows)


def _introduction(rows: Sequence[Row], fitting: Sequence[Row]) -> Iterator[str]:
    values = [(_UNITS.get(n, n), ", ".join(map(str, v))) for n, v in DIMENSIONS.items()]
    yield from [
        "## The rule of thumb against the planner",
        "",
        f"A grid of {len(rows)} requests. Each value below stands in equally many of them, in an"
        " order shuffled per dimension. `python benchmarks/planner/study.py --show 17` prints"
        " request 17 as a config for `flexrlhf plan`.",
        "",
        *table(("dimension", "values"), values),
        "Answers are skewed around three eighths of the longest; those of 256 tokens are all as"
        " long. An iteration has four mini-batches. Unlike devices are half of each kind: H100 and"
        " A100 on one InfiniBand, A100 and V100 on 100 Gbit/s Ethernet between them.",
        "Plans of `auto` may leave the slower kind unused; the guideline's generate on it.",
        "",
        f"Something fits in {len(fitting)} of {len(rows)}. *Regret* is the simulated iteration"
        " time of the guideline's plan, with the best degrees for it, over that of the best plan of"
        " `auto`, minus 1. Differences below 3 % count as none.",
        "",
    ]


def _rules(fitting: Sequence[Row]) -> Iterator[str]:
    rules: dict[str, Callable[[Row], float | None]] = {"guideline": guideline_regret}
    for name in FIXED:
        rules[f"always {name}"] = lambda row, name=name: regret(row, row["seconds"].get(name))
    lines: list[tuple[object, ...]] = []
    for name, rule in rules.items():
        found = [value for row in fitting if (value := rule(row)) is not None]
        level = sum(value < LEVEL for value in found)
        lines.append((name, f"{len(found)} of {len(fitting)}", level, *spread_cells(found)))
    yield from table(("rule", "fits", "level with the best", "median", "90th", "largest"), lines)
    wins = Counter(winner(row) for row in fitting)
    said = ", ".join(f"{name} {count}" for name, count in wins.most_common())
    yield from [f"What wins how often, by however little: {said}.", ""]


def _branches(fitting: Sequence[Row]) -> Iterator[str]:
    header = ("the rule says", "cases", "the best says the same", "median", "90th", "largest")
    lines: list[tuple[object, ...]] = []
    for name in sorted({row["guideline"]["strategy"] for row in fitting}):
        for staleness, mode in enumerate(("synchronous", "one round stale")):
            held = [
                row
                for row in fitting
                if row["guideline"]["strategy"] == name and row["case"]["staleness"] == staleness
            ]
            same = sum(winner(row) == name for row in held)
            said = f"{name}, {mode}"
            lines.append((said, len(held), same, *spread_cells(_known(held))))
    yield from table(header, lines)


def _known(rows: Sequence[Row]) -> list[float]:
    return [value for row in rows if (value := guideline_regret(row)) is not None]


def _by_dimension(fitting: Sequence[Row]) -> Iterator[str]:
    lines: list[tuple[object, ...]] = []
    widest = ("", 0.0, "", "")
    for name, values in DIMENSIONS.items():
        medians: dict[str, float] = {}
        for value in values:
            found = _known([row for row in fitting if row["case"][name] == value])
            lines.append((_UNITS.get(name, name), value, len(found), *spread_cells(found)))
            if spread := Spread.of(found):
                medians[str(value)] = spread.median
        low, high = (extreme(medians, key=medians.__getitem__) for extreme in (min, max))
        widest = max(
            widest, (_UNITS.get(name, name), medians[high] - medians[low], low, high), key=_gap
        )
    yield from ["Regret of the guideline by dimension, where its plan fits:", ""]
    yield from table(("dimension", "value", "cases", "median", "90th", "largest"), lines)
    name, _, low, high = widest
    yield from [
        f"The median regret moves most with *{name}*: least at {low}, most at {high}.",
        "",
    ]


def _gap(entry: tuple[str, float, str, str]) -> float:
    return entry[1]


def _unfit(rows: Sequence[Row], fitting: Sequence[Row]) -> Iterator[str]:
    held = [row for row in fitting if guideline_regret(row) is None]
    yield f"In {len(held)} of {len(fitting)} cases the guideline's plan does not fit, but another."
    yield ""
    if held:
        lines = [
            (rows.index(row), words(row), row["guideline"]["strategy"], winner(row)) for row in held
        ]
        yield from table(("case", "what", "the rule says", "what fits best"), lines)
    nothing = [place for place, row in enumerate(rows) if best_seconds(row) is None]
    yield from [f"Nothing fits in cases: {listed(nothing)}.", ""]


def _worst(rows: Sequence[Row]) -> Iterator[str]:
    judged = [(value, row) for row in rows if (value := guideline_regret(row)) is not None]
    judged.sort(key=lambda entry: -entry[0])
    lines = [
        (rows.index(row), words(row), row["guideline"]["strategy"], winner(row), percent(value))
        for value, row in judged[:_WORST]
    ]
    yield from ["The largest regrets:", ""]
    yield from table(("case", "what", "the rule says", "best", "regret"), lines)
