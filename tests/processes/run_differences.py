"""How far two runs are apart: tokens, metrics and final weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file

NOT_THE_SAME: Final = (
    *("time/", "throughput/", "memory/", "utilization/", "share/", "cost/"),
    *("weights/bytes", "logprob_gap/"),
)
"""Metrics that depend on where a run ran; the gap between engine and trainer is rounding alone."""
_FLOOR: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Differences:
    """The largest relative difference of each kind, and where the metrics' one is."""

    metrics: float
    weights: float
    same_tokens: bool
    at: str


def differences(run: Path, expected: Path, *, floor: float = _FLOOR) -> Differences:
    """Compares the folders of two runs.

    Args:
        run: one of them.
        expected: what it is measured by.
        floor: numbers below it are compared as if they were as large, since zero has no parts.

    Raises:
        AssertionError: one has rows, metrics, answers or weights that the other lacks.
    """
    apart, at = _metrics_apart(run, expected, floor)
    rewards, same_tokens = _samples_apart(run, expected, floor)
    if rewards > apart:
        apart, at = rewards, "a reward of samples.jsonl"
    return Differences(apart, _weights_apart(run, expected, floor), same_tokens, at)


def _relative(value: float, expected: float, floor: float) -> float:
    return abs(value - expected) / max(abs(expected), floor)


def rows(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file of JSON lines; none where there is no such file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def same_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of a row that no placement may change."""
    return {key: value for key, value in row.items() if not key.startswith(NOT_THE_SAME)}


def _metrics_apart(run: Path, expected: Path, floor: float) -> tuple[float, str]:
    found = [same_metrics(row) for row in rows(run / "metrics.jsonl")]
    wanted = [same_metrics(row) for row in rows(expected / "metrics.jsonl")]
    assert [row.keys() for row in found] == [row.keys() for row in wanted]
    apart, at = 0.0, ""
    for row, other in zip(found, wanted, strict=True):
        for key, value in row.items():
            if (difference := _relative(value, other[key], floor)) > apart:
                apart, at = difference, f"{key} of iteration {row['iteration']}"
    return apart, at


def _samples_apart(run: Path, expected: Path, floor: float) -> tuple[float, bool]:
    found, wanted = (rows(folder / "samples.jsonl") for folder in (run, expected))
    keys = ("iteration", "kind", "sample_id", "prompt")
    assert [[row[k] for k in keys] for row in found] == [[row[k] for k in keys] for row in wanted]
    pairs = list(zip(found, wanted, strict=True))
    apart = max(
        (_relative(row["reward"], other["reward"], floor) for row, other in pairs), default=0.0
    )
    return apart, all(row["response"] == other["response"] for row, other in pairs)


def _weights_apart(run: Path, expected: Path, floor: float) -> float:
    found, wanted = (sorted((f / "model").rglob("*.safetensors")) for f in (run, expected))
    assert [file.relative_to(run) for file in found] == [f.relative_to(expected) for f in wanted]
    apart = 0.0
    for file, other in zip(found, wanted, strict=True):
        tensors, others = load_file(file), load_file(other)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            scale = others[name].abs().clamp_min(floor)
            apart = max(apart, float(((tensor - others[name]).abs() / scale).max()))
    return apart
