"""What docs/benchmarks.md shows of generation that grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scaling import AXES, BASE, PROMPT_TOKENS, Point

from flexrlhf.report.colours import SERIES_COLOURS
from flexrlhf.report.markup import Html
from flexrlhf.report.panels import Axis, Curve, Panel, panels_picture

Row = Mapping[str, Any]
OURS: Final = "flexrlhf"
LIMIT: Final = "limit"
_MILLION: Final = 1_000_000


def scaling_section(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the lines of the section.

    Args:
        rows: of the points that were measured.
    """
    yield "### Scaling"
    yield ""
    yield (
        "Generation alone, tokens/s, as one thing grows: Llama with random weights, float32,"
        f" prompts of {PROMPT_TOKENS} tokens; where nothing else is said {BASE.size} parameters,"
        f" {BASE.prompts} prompts with one answer of {BASE.new_tokens} tokens. The limit is"
        " reckoned from the machine's best matrix products and its reading speed, measured in the"
        " same turns. Medians of turns in which programs alternate."
    )
    yield ""
    found = {row["job"]: row for row in rows}
    lines = list(_lines(found))
    missing = sum(point.name not in found for axis in AXES.values() for point in axis.values())
    if not lines:
        yield "Not measured."
        return
    others = _others(rows)
    head = [
        "grows",
        "value",
        "ours",
        *others,
        f"of the {LIMIT}",
        "turns",
        "at",
        "commit",
        "machine",
    ]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from lines
    if missing:
        yield ""
        yield f"Lines that are **not measured** yet: {missing}."
    yield ""
    yield "![Tokens a second as batch, length and model grow](images/benchmarks/scaling.svg)"


def scaling_picture(rows: Sequence[Row]) -> Html:
    """Returns a panel for each thing that grows, with the points that there are."""
    found = {row["job"]: row for row in rows}
    names = [OURS, *_others(rows)]
    colours = dict(zip(names, SERIES_COLOURS, strict=False))
    panels = [
        Panel(
            f"{name.split(',')[0].capitalize()}: tokens/s",
            Axis(name, [value / _scale(name) for value in axis], is_log=True, unit=_unit(name)),
            Axis("", _ticks(found, axis.values()), is_log=True),
            [
                Curve(program, curve, colours[program], is_dashed=program == LIMIT)
                for program in names
                if (curve := _points(found, axis, program, _scale(name)))
            ],
        )
        for name, axis in AXES.items()
    ]
    return panels_picture(panels, columns=2, spoken="Tokens a second by what grows")


def _lines(found: Mapping[str, Row]) -> Iterator[str]:
    others = _others(list(found.values()))
    for name, axis in AXES.items():
        for value, point in axis.items():
            if point.name not in found:
                continue
            row = found[point.name]
            speeds = {program: each["median"] for program, each in row["programs"].items()}
            cells = [
                name,
                f"{value / _scale(name):g}{_unit(name)}",
                f"{speeds[OURS]:.0f}",
                *(f"{speeds[other]:.0f}" for other in others),
                f"{speeds[OURS] / speeds[LIMIT]:.0%}",
                str(len(row["programs"][OURS]["runs"])),
                row["at"],
                row["commit"],
                row["machine"],
            ]
            yield f"| {' | '.join(cells)} |"


def _others(rows: Sequence[Row]) -> list[str]:
    """Returns the programs beside ours, the limit last."""
    names = dict.fromkeys(name for row in rows for name in row["programs"] if name != OURS)
    return sorted(names, key=lambda name: name == LIMIT)


def _points(
    found: Mapping[str, Row], axis: Mapping[int, Point], program: str, scale: int
) -> list[tuple[float, float]]:
    return [
        (value / scale, found[point.name]["programs"][program]["median"])
        for value, point in axis.items()
        if point.name in found
    ]


def _ticks(found: Mapping[str, Row], held: Any) -> list[float]:
    """Returns powers of ten, and their threefold, that span what was measured."""
    rows = [found[point.name] for point in held if point.name in found]
    values = [each["median"] for row in rows for each in row["programs"].values()] or [1.0, 10.0]
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    ticks = [factor * 10.0**power for power in range(low, high + 1) for factor in (1, 3)]
    first = max(i for i, tick in enumerate(ticks) if tick <= min(values))
    last = next(i for i, tick in enumerate(ticks) if tick >= max(values))
    return ticks[first : max(last, first + 1) + 1]


def _scale(name: str) -> int:
    return _MILLION if name == "parameters" else 1


def _unit(name: str) -> str:
    return "M" if name == "parameters" else ""
