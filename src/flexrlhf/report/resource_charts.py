"""Charts of what an iteration costs: time per stage, shares, throughput and memory."""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.report.charts import Chart, Line, bar_size, line_figure, stacked_figure
from flexrlhf.report.colours import MAIN_COLOUR, REST_COLOUR, SERIES_COLOURS, stage_colour
from flexrlhf.report.formats import byte_unit
from flexrlhf.report.series import Metrics, Series, series

_TIMED_STAGES = ("generate", "score", "train", "sync")
_SHARES = ("generate", "score", "train", "sync", "communication", "bubble")
_SHARE_COLOURS = {"communication": SERIES_COLOURS[3], "bubble": REST_COLOUR}


def resource_charts(metrics: Metrics) -> list[Chart]:
    """Returns the charts whose metrics this run has."""
    charts = [
        _time_chart(metrics),
        _share_chart(metrics),
        _rate_chart(metrics, "throughput/samples_per_s", "Samples per second", "samples/s"),
        _rate_chart(metrics, "throughput/tokens_per_s", "Tokens per second", "tokens/s"),
        _memory_chart(metrics),
        _percent_chart(
            metrics,
            "memory/efficiency",
            "Memory efficiency",
            "Bytes that the working role needs, of all that are held, over the iteration.",
        ),
        _percent_chart(
            metrics, "utilization/mean", "Utilisation", "Time in which a device was busy, mean."
        ),
        _rate_chart(metrics, "cost/per_1k_samples", "Cost of 1 000 samples", ""),
    ]
    return [chart for chart in charts if chart is not None]


def _time_chart(metrics: Metrics) -> Chart | None:
    lines = [
        Line(found, stage, stage_colour(stage))
        for stage in _TIMED_STAGES
        if (found := series(metrics, f"time/{stage}_s")) is not None
    ]
    total = series(metrics, "time/iteration_s")
    if not lines and total is None:
        return None
    if total is not None:
        lines.append(Line(_rest(total, [line.series for line in lines]), "other", REST_COLOUR))
    caption = "Advantages count as scoring; other is what is left of the iteration."
    size = bar_size(len(metrics))
    if size > 1:
        caption += f" A bar is the mean of {size} iterations."
    figure = stacked_figure(lines, unit="s")
    return Chart("Time per stage", "s", caption, figure, is_wide=True)


def _rest(total: Series, parts: list[Series]) -> Series:
    """Seconds of the iteration in none of the parts; never below zero, where stages overlap."""
    by_part = [dict(zip(part.iterations, part.values, strict=True)) for part in parts]
    left = tuple(
        max(0.0, value - sum(part.get(iteration, 0.0) for part in by_part))
        for iteration, value in zip(total.iterations, total.values, strict=True)
    )
    return replace(total, key="time/other_s", values=left)


def _share_chart(metrics: Metrics) -> Chart | None:
    lines = [
        Line(found, name, _SHARE_COLOURS.get(name, stage_colour(name)))
        for name in _SHARES
        if (found := series(metrics, f"share/{name}", scale=100.0)) is not None
        and max(found.values) > 0
    ]
    if not lines:
        return None
    caption = "Share of the devices' time; bubble is waiting."
    return Chart("Where the time goes", "%", caption, stacked_figure(lines, unit="%"))


def _rate_chart(metrics: Metrics, key: str, title: str, unit: str) -> Chart | None:
    found = series(metrics, key)
    if found is None:
        return None
    figure = line_figure([Line(found, title, MAIN_COLOUR)], unit=unit)
    figure["layout"]["yaxis"] |= {"rangemode": "tozero", "exponentformat": "SI"}
    return Chart(title, unit, "", figure)


def _memory_chart(metrics: Metrics) -> Chart | None:
    found = series(metrics, "memory/peak_bytes")
    if found is None:
        return None
    divisor, unit = byte_unit(max(found.values))
    scaled = replace(found, values=tuple(value / divisor for value in found.values))
    figure = line_figure([Line(scaled, "peak", MAIN_COLOUR, is_noisy=False)], unit=unit)
    figure["layout"]["yaxis"] |= {"rangemode": "tozero"}
    caption = "Largest memory of a device or process within the iteration."
    return Chart("Peak memory", unit, caption, figure)


def _percent_chart(metrics: Metrics, key: str, title: str, caption: str) -> Chart | None:
    found = series(metrics, key, scale=100.0)
    if found is None:
        return None
    figure = line_figure([Line(found, title, MAIN_COLOUR)], unit="%")
    figure["layout"]["yaxis"] = {"range": [0, 104]}  # room for a line at 100
    return Chart(title, "%", caption, figure)
