"""What the plan expected of a run beside what was measured, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final, TypeGuard

from flexrlhf.report.formats import format_bytes, format_seconds
from flexrlhf.report.markup import Html, element, join, table
from flexrlhf.report.run_folder import RunRecord
from flexrlhf.report.series import series

_HEADER: Final = ("", "predicted", "measured", "prediction off by")
_STAGES: Final = ("generate", "score", "train", "sync")
_PEAK: Final = "memory/peak_bytes"


def prediction_table(record: RunRecord) -> Html | None:
    """Returns a row per stage, the iteration and the memory; None where nothing was predicted."""
    plans = record.plan.get("plans")
    first = plans[0] if isinstance(plans, list) and plans else None
    predicted = first.get("predicted") if isinstance(first, Mapping) else None
    if not isinstance(predicted, Mapping) or not record.metrics:
        return None
    rows = [*_time_rows(predicted, record), *_memory_rows(predicted, record)]
    words = (
        "The prediction is simulated: made before the first iteration, with the rows that were read"
        " and the answers' length that the config expects (rollout.mean_new_tokens). Measured is"
        " the median over the iterations, and the highest peak of memory."
    )
    return join([element("p", words, class_="quiet"), table(_HEADER, rows)]) if rows else None


def _time_rows(predicted: Mapping[str, Any], record: RunRecord) -> Iterator[tuple[str, ...]]:
    stages = predicted.get("stage_s")
    expected = (
        {stage: stages.get(stage) for stage in _STAGES} if isinstance(stages, Mapping) else {}
    )
    expected["iteration"] = predicted.get("iteration_s")
    for name, seconds in expected.items():
        measured = series(record.metrics, f"time/{name}_s")
        if measured is not None and _is_positive(seconds):
            value = median(measured.values)
            yield name, format_seconds(seconds), format_seconds(value), _off(seconds, value)


def _memory_rows(predicted: Mapping[str, Any], record: RunRecord) -> Iterator[tuple[str, ...]]:
    measured = series(record.metrics, _PEAK)
    by_device = predicted.get("peak_bytes")
    stages = next(iter(by_device.values()), None) if isinstance(by_device, Mapping) else None
    if measured is None or not isinstance(stages, Mapping):
        return
    peaks = [value for value in stages.values() if _is_positive(value)]
    if peaks:
        peak, value = max(peaks), max(measured.values)
        yield "peak memory", format_bytes(peak), format_bytes(value), _off(peak, value)


def _is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e100


def _off(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f} %" if measured > 0 else "–"
