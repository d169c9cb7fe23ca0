"""What the page says of the number of devices from which disaggregation wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from crossover import MODELS, TRAINED
from spread import LEVEL, table

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rival:
    """What disaggregation is measured against."""

    name: str
    key: str
    """A strategy, or `together`: the best of all that set no devices apart."""


RIVALS: Final = (
    Rival("per-token gathers", "zero3_generation"),
    Rival("colocated", "colocated"),
    Rival("tensor parallel generation", "tp_generation"),
    Rival("the best without pools", "together"),
)
MODES: Final = {"synchronous": "disaggregated", "one round stale": "overlapped"}


def seconds(row: Row, key: str) -> float | None:
    """Returns the iteration time of a strategy, or of one of the row's own entries."""
    return row[key] if key in ("together", "overlapped") else row["seconds"].get(key)


def speed_up(row: Row, rival: Rival, mode: str) -> float | None:
    """Returns how much faster disaggregation is than a rival; None where one has no plan."""
    own, other = seconds(row, MODES[mode]), seconds(row, rival.key)
    return None if own is None or other is None else other / own


def of_group(rows: Sequence[Row], model: str, trained: str) -> list[Row]:
    """Returns the rows of a model, the smallest cluster first."""
    held = [r for r in rows if (r["scene"]["model"], r["scene"]["trained"]) == (model, trained)]
    return sorted(held, key=lambda row: row["scene"]["devices"])


def crossover_section(rows: Sequence[Row]) -> Iterator[str]:
    """Returns the section."""
    most = max(row["scene"]["devices"] for row in rows)
    yield from [
        "## From how many devices disaggregation wins",
        "",
        "PPO with four models of one size on A100 of 80 GB, eight in a node, eight adapters of 200"
        " Gbit/s in each; prompts and answers of 256 tokens and 24 samples per device, as in"
        " `examples/plans/paper-4x8-a100.yaml`. LoRA is the authors' setting. Every placement has"
        " its best degrees. *Per-token gathers* is the weak baseline, `zero3_generation`;"
        " *colocated* is fair, since it generates as is best, and *the best without pools* is the"
        " best of `auto` but for disaggregation. *One round stale* is `weights.max_staleness: 1`:"
        " generation overlaps the training of the round before.",
        "",
        "A cell says from how many devices on disaggregation is faster by 3 % or more on every"
        f" larger cluster up to {most}. *Never*: at {most} it is still slower by 3 % or more;"
        " *level*: there it is as fast.",
        "",
    ]
    for mode in MODES:
        header = ("model", "trained", *(rival.name for rival in RIVALS))
        yield from [f"{mode.capitalize()}:", "", *table(header, _cells(rows, mode))]
    yield from [*_findings(rows), *_coincidences(rows), ""]
    yield from ["In the pictures the grey line at 1x is where both are as fast.", ""]
    for name in TRAINED:
        file = f"images/planner-study/crossover-{name.split()[0].lower()}.svg"
        yield from [f"![Speed-up of disaggregation, {name}]({file})", ""]
    yield from _all_numbers(rows)


def _cells(rows: Sequence[Row], mode: str) -> Iterator[tuple[object, ...]]:
    for trained in TRAINED:
        for model in MODELS:
            held = of_group(rows, model, trained)
            yield model, trained, *(crossing(held, rival, mode) for rival in RIVALS)


def crossing(held: Sequence[Row], rival: Rival, mode: str) -> str:
    """Returns from how many devices on a group's speed-ups stay 3 % or more above 1."""
    known = [
        (row["scene"]["devices"], value)
        for row in held
        if (value := speed_up(row, rival, mode)) is not None
    ]
    if not known:
        return "no plan"
    last_loss = max((place for place, (_, v) in enumerate(known) if v < 1 + LEVEL), default=-1)
    if last_loss < len(known) - 1:
        return str(known[last_loss + 1][0])
    return "level" if known[-1][1] > 1 - LEVEL else "never"


def is_win(said: str) -> bool:
    """Returns whether `crossing` names a number of devices."""
    return said.isdigit()


def _findings(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence for each rival and mode."""
    for mode in MODES:
        for rival in RIVALS:
            groups = [of_group(rows, model, trained) for model in MODELS for trained in TRAINED]
            said = [crossing(held, rival, mode) for held in groups]
            values = [v for row in rows if (v := speed_up(row, rival, mode)) is not None]
            won = sum(map(is_win, said))
            if values:
                yield (
                    f"- {mode.capitalize()}, against {rival.name}: faster on the largest clusters"
                    f" in {won} of {len(said)} settings, level in {said.count('level')}; speed-ups"
                    f" from {min(values):.2f} to {max(values):.2f}."
                )


def _coincidences(rows: Sequence[Row]) -> Iterator[str]:
    pair = ("tp_generation", "colocated")
    both = [row for row in rows if all(seconds(row, key) is not None for key in pair)]
    level = sum(_is_level(row, *pair) for row in both)
    scenes = [row["scene"] for row in rows if all(s is None for s in row["seconds"].values())]
    said = ", ".join(f"{s['model']} {s['trained']} on {s['devices']}" for s in scenes)
    yield f"- `tp_generation` and `colocated` are level in {level} of {len(both)} rows."
    yield f"- Nothing fits: {said or 'nowhere'}."


def _is_level(row: Row, first: str, second: str) -> bool:
    a, b = seconds(row, first), seconds(row, second)
    return a is not None and b is not None and abs(a / b - 1) < LEVEL


def _all_numbers(rows: Sequence[Row]) -> Iterator[str]:
    header = (
        "model",
        "trained",
        "devices",
        *(rival.name for rival in RIVALS[:2]),
        "the best without pools",
        "disaggregated",
        "one round stale",
    )
    keys = ("zero3_generation", "colocated", "together", "disaggregated", "overlapped")
    lines = [
        (*row["scene"].values(), *(_seconds(row, key) for key in keys))
        for trained in TRAINED
        for model in MODELS
        for row in of_group(rows, model, trained)
    ]
    yield from ["Simulated seconds of an iteration:", ""]
    yield from table(header, lines)


def _seconds(row: Row, key: str) -> str:
    found = seconds(row, key)
    name = f" ({row['together_strategy']})" if key == "together" and found is not None else ""
    return "-" if found is None else f"{found:.4g}{name}"
