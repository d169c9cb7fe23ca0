"""A small static picture of how a run went, for a README: reward and KL over the iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError
from flexrlhf.report.colours import MAIN_COLOUR, ROLE_COLOURS
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.run_folder import RunRecord, read_run
from flexrlhf.report.series import Series, series
from flexrlhf.report.svg import nice_ticks, picture

_PANELS = (
    ("reward/mean", "Reward", ROLE_COLOURS["reward"]),
    ("kl/mean", "KL to the reference, nats per token", MAIN_COLOUR),
    ("loss/preference", "Preference loss", ROLE_COLOURS["reward"]),
    ("accuracy/preference", "Preference accuracy", MAIN_COLOUR),
    ("loss/supervised", "Supervised loss", ROLE_COLOURS["actor"]),
)
_WIDTH, _HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 38, 42


def write_progress_picture(run_dir: Path | str, path: Path | str) -> Path:
    """Writes an SVG of at most two metrics over the iterations: reward and KL, where it has them.

    Of a run of several stages the last one is drawn.

    Raises:
        ConfigError: the folder is no run folder, or has none of the metrics that can be drawn.
        OSError: the picture cannot be written.
    """
    record = read_run(run_dir)
    picture = progress_picture(record.stages[-1] if record.stages else record)
    target = Path(path)
    write_atomically(target, picture)
    return target


def progress_picture(record: RunRecord) -> str:
    """Returns the picture of one run or stage as SVG.

    Raises:
        ConfigError: it has none of the metrics that can be drawn.
    """
    found = [(series(record.metrics, key), title, colour) for key, title, colour in _PANELS]
    drawn = [(line, title, colour) for line, title, colour in found if line is not None][:2]
    if not drawn:
        raise ConfigError(
            f"Run folder {str(record.path)!r} has nothing to draw.",
            f"A picture needs one of {', '.join(key for key, _, _ in _PANELS)} in metrics.jsonl.",
            "Give the folder of a run that finished an iteration.",
        )
    spread = series(record.metrics, "reward/std")
    panels = (
        _panel(line, title, colour, place, spread if line.key == "reward/mean" else None)
        for place, (line, title, colour) in enumerate(drawn)
    )
    return picture(
        _WIDTH * len(drawn),
        _HEIGHT,
        *panels,
        spoken=" and ".join(title for _, title, _ in drawn) + " over the iterations",
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps iterations and values onto the pixels of a panel."""

    iterations: tuple[float, float]
    values: tuple[float, float]

    def x(self, iteration: float) -> float:
        return _LEFT + _part(iteration, self.iterations) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - _part(value, self.values) * (_HEIGHT - _TOP - _BOTTOM)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def _panel(line: Series, title: str, colour: str, place: int, spread: Series | None) -> Html:
    points = list(zip(line.iterations, line.values, strict=True))
    band = _band(points, spread)
    values = [value for _, value in points + band]
    ticks = nice_ticks(min(values), max(values))
    scale = _Scale((line.iterations[0], line.iterations[-1]), (ticks[0], ticks[-1]))
    parts = [_grid(scale, ticks), _axis_words(scale, title)]
    if band:
        parts.append(element("polygon", points=scale.path(band), fill=colour, fill_opacity="0.15"))
    parts.append(
        element(
            "polyline",
            points=scale.path(points),
            fill="none",
            stroke=colour,
            stroke_width="2",
            stroke_linejoin="round",
        )
    )
    return element("g", *parts, transform=f"translate({place * _WIDTH} 0)")


def _band(
    points: Sequence[tuple[float, float]], spread: Series | None
) -> list[tuple[float, float]]:
    """Corners of the area one standard deviation around the points; empty without a spread."""
    if spread is None:
        return []
    widths = dict(zip(spread.iterations, spread.values, strict=True))
    known = [(x, y, widths[int(x)]) for x, y in points if int(x) in widths]
    return [(x, y + s) for x, y, s in known] + [(x, y - s) for x, y, s in reversed(known)]


def _grid(scale: _Scale, ticks: Sequence[float]) -> Html:
    parts: list[Html] = []
    for tick in ticks:
        y = f"{scale.y(tick):.1f}"
        line = {"x1": str(_LEFT), "x2": str(_WIDTH - _RIGHT), "y1": y, "y2": y}
        label = {"x": str(_LEFT - 8), "y": y, "text_anchor": "end", "dominant_baseline": "middle"}
        parts.append(element("line", class_="grid", **line))
        parts.append(element("text", f"{tick:g}", **label))
    return join(parts)


def _axis_words(scale: _Scale, title: str) -> Html:
    first, last = scale.iterations
    base = _HEIGHT - _BOTTOM + 17
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    ends = {first: "start", last: "end"}
    labels = [
        element("text", f"{end:g}", x=f"{scale.x(end):.1f}", y=str(base), text_anchor=anchor)
        for end, anchor in ends.items()
    ]
    name = element("text", "iteration", x=f"{middle:g}", y=str(base), text_anchor="middle")
    return join([element("text", title, class_="title", x=str(_LEFT), y="22"), *labels, name])


def _part(value: float, ends: tuple[float, float]) -> float:
    """Place of `value` between the two ends, 0 to 1; the middle where they are one."""
    low, high = ends
    return (value - low) / (high - low) if high > low else 0.5
