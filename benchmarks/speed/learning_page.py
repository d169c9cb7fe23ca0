"""What docs/benchmarks.md shows of the programs' reward curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from learning import BLOCK, LEAST_INSIDE, blocks

from flexrlhf.report.colours import SERIES_COLOURS
from flexrlhf.report.markup import Html
from flexrlhf.report.panels import Axis, Curve, Panel, panels_picture
from flexrlhf.report.svg import nice_ticks

Row = Mapping[str, Any]
_RESULTS: Final = {"same": "met", "different": "**not met**", "not known": "**not known**"}


def learning_section(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the lines of the section.

    Args:
        rows: of all jobs with a curve that were run.
    """
    yield "### Learning"
    yield ""
    yield (
        "Speed must not be bought with quality: the same job with a reward that can be learnt, run"
        " by both programs from the same weights with the same optimiser, loss and data; runs"
        " differ in order and sampling only. The goal is the same reward curve. The rule, stated"
        " before the runs: over the whole curve and over its last third, the difference of the mean"
        " rewards (ours less theirs, with its 95 % interval by Welch over the runs) is no more than"
        " noise, with half an interval no wider than the resolution; and in blocks of"
        f" {BLOCK} iterations our mean lies between their least and most run in at least"
        f" {LEAST_INSIDE:.0%} of the blocks. So that the rule can fail, it must find ours at half"
        " the learning rate different; else nothing is known."
    )
    yield ""
    if not rows:
        yield "Not measured."
        return
    yield (
        "| job | against | reward | runs | whole curve | last third | resolution | inside | goal |"
        " half the rate is found | at | commit | machine |"
    )
    yield f"|{'---|' * 13}"
    for row in rows:
        verdict, curve = row["verdict"], row["curve"]
        cells = [
            row["job"],
            row["peer"],
            f"{curve['reward']}, learning rate {curve['learning_rate']:g},"
            f" {curve['iterations']} iterations",
            f"{len(row['ours'])} + {len(row['theirs'])}",
            *(_difference(verdict[part]) for part in ("whole", "last_third")),
            f"{curve['resolution']:g}",
            f"{verdict['inside']:.0%}",
            _result(row),
            f"{row['verdict_slowed']['result']}"
            f" ({_difference(row['verdict_slowed']['whole'])} over the whole curve)",
            row["at"],
            row["commit"],
            row["machine"],
        ]
        yield f"| {' | '.join(cells)} |"
    for name in learning_pictures(rows):
        yield ""
        yield f"![Reward curves of {name}](images/benchmarks/{name}.svg)"


def learning_pictures(rows: Sequence[Row]) -> dict[str, Html]:
    """Returns a picture for each row, by name: every run's mean reward in blocks of iterations."""
    return {f"learning-{row['job']}-{row['peer'].replace(' ', '-')}": _picture(row) for row in rows}


def _picture(row: Row) -> Html:
    kinds = {
        "flexrlhf at half the rate": (row["ours_slowed"], SERIES_COLOURS[5]),
        row["peer"]: (row["theirs"], SERIES_COLOURS[1]),
        "flexrlhf": (row["ours"], SERIES_COLOURS[0]),
    }
    curves = [
        Curve(name, _points(run), colour, is_dashed="rate" in name, has_dots=False)
        for name, (runs, colour) in kinds.items()
        for run in runs
    ]
    values = [y for curve in curves for _, y in curve.points]
    panel = Panel(
        f"{row['job']}: mean reward of every run",
        Axis("iteration", nice_ticks(0, row["curve"]["iterations"], count=6)),
        Axis("", nice_ticks(min(values), max(values))),
        curves,
    )
    spoken = f"Reward by iteration of flexrlhf and {row['peer']}, {len(row['ours'])} runs each"
    return panels_picture([panel], columns=1, spoken=spoken)


def _points(run: Sequence[float]) -> list[tuple[float, float]]:
    return [((place + 0.5) * BLOCK, value) for place, value in enumerate(blocks(run))]


def _difference(part: Mapping[str, float]) -> str:
    return f"{part['mean']:+.4f} ± {part['half_width']:.4f}"


def _result(row: Row) -> str:
    if row["verdict_slowed"]["result"] != "different":
        return _RESULTS["not known"]
    return _RESULTS[row["verdict"]["result"]]
