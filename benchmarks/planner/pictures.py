"""The pictures of the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from crossover import DEVICES, MODELS, TRAINED
from crossover_section import MODES, RIVALS, of_group, speed_up
from growth_section import GOAL_S
from regret_section import best_seconds, guideline_regret, regret
from share_picture import share_panels

from flexrlhf.report.colours import SERIES_COLOURS
from flexrlhf.report.markup import Html
from flexrlhf.report.panels import Axis, Curve, Panel, panels_picture

Row = Mapping[str, Any]
_RULES: Final = ("guideline", "always colocated", "always interleaved_1", "always disaggregated")
_RATIOS: Final = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
_FACTORS: Final = (1, 1.25, 1.5, 2, 3, 4, 6, 10)
_SHOWN_RIVALS: Final = (RIVALS[0], RIVALS[-1])


def pictures(numbers: Mapping[str, Any]) -> dict[str, Html]:
    """Returns the pictures by name, of the parts that there are."""
    found: dict[str, Html] = {}
    if "regret" in numbers:
        found["regret"] = _regret(numbers["regret"])
        found["shares"] = share_panels(numbers["regret"])
    if "crossover" in numbers:
        for trained in TRAINED:
            name = f"crossover-{trained.split()[0].lower()}"
            found[name] = _crossover(numbers["crossover"], trained)
    if "growth" in numbers:
        found["growth"] = _growth(numbers["growth"])
    return found


def _regret(rows: Sequence[Row]) -> Html:
    fitting = [row for row in rows if best_seconds(row) is not None]
    curves: list[Curve] = []
    for name, colour in zip(_RULES, SERIES_COLOURS, strict=False):
        found = sorted(1 + value for row in fitting if (value := _cost(row, name)) is not None)
        points = [(100 * (i + 1) / len(fitting), value) for i, value in enumerate(found)]
        curves.append(Curve(name, points, colour, has_dots=False))
    panel = Panel(
        "Iteration time over the best plan's (simulated)",
        Axis("share of cases that cost at most so much", (0, 20, 40, 60, 80, 100), unit=" %"),
        Axis("", _ticks(_FACTORS, curves), is_log=True, unit="x"),
        curves,
    )
    return panels_picture([panel], columns=1, spoken="What each rule of thumb costs, by cases")


def _ticks(ticks: Sequence[float], curves: Sequence[Curve]) -> Sequence[float]:
    """The ticks that the curves need."""
    values = [y for curve in curves for _, y in curve.points] or [1.0]
    first = max((i for i, tick in enumerate(ticks) if tick <= min(values)), default=0)
    last = next((i for i, tick in enumerate(ticks) if tick >= max(values)), len(ticks) - 1)
    return ticks[first : max(last, first + 1) + 1]


def _cost(row: Row, rule: str) -> float | None:
    if rule == "guideline":
        return guideline_regret(row)
    return regret(row, row["seconds"].get(rule.removeprefix("always ")))


def _crossover(rows: Sequence[Row], trained: str) -> Html:
    curves = {model: list(_speed_ups(of_group(rows, model, trained))) for model in MODELS}
    ticks = _ticks(_RATIOS, [curve for held in curves.values() for curve in held])
    panels = [
        Panel(
            f"{model}, {trained}: speed-up of pools (simulated)",
            Axis("devices", DEVICES, is_log=True),
            Axis("", ticks, is_log=True, unit="x"),
            held,
            level=1,
        )
        for model, held in curves.items()
    ]
    spoken = f"How much faster disaggregation is by devices, {trained}"
    return panels_picture(panels, columns=2, spoken=spoken)


def _speed_ups(rows: Sequence[Row]) -> Iterator[Curve]:
    for mode in MODES:
        for rival, colour in zip(_SHOWN_RIVALS, SERIES_COLOURS, strict=False):
            points = [
                (row["scene"]["devices"], value)
                for row in rows
                if (value := speed_up(row, rival, mode)) is not None
            ]
            is_stale = mode != "synchronous"
            name = f"over {rival.name}{', one round stale' if is_stale else ''}"
            yield Curve(name, points, colour, is_dashed=is_stale)


def _growth(growth: Mapping[str, Any]) -> Html:
    sizes = growth["sizes"]
    curves = [
        Curve(
            name,
            [(size["devices"], size[key]) for size in sizes if size.get(key)],
            colour,
        )
        for (name, key), colour in zip(
            {"whole command": "seconds", "search": "search_seconds"}.items(),
            SERIES_COLOURS,
            strict=False,
        )
    ]
    panel = Panel(
        "Seconds of a plan for four 70B models (measured)",
        Axis("devices", [size["devices"] for size in sizes], is_log=True),
        Axis("", (0.5, 1, 2, 5, 10, 20), is_log=True, unit=" s"),
        curves,
        level=GOAL_S,
    )
    return panels_picture([panel], columns=1, spoken="Time of a plan by number of devices")
