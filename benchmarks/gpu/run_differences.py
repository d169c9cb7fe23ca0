"""How far two run folders are apart: answers, what was measured of them, and final weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from agreement import Agreement
from safetensors.torch import load_file

_LOSSES: Final = ("loss/", "critic/", "grad_norm")
_JUDGED: Final = ("reward/", "kl/", "entropy/", "ratio/")
_FLOOR: Final = 1e-2
"""Numbers below are compared as if they were as large, since zero has no parts."""


@dataclass(frozen=True)
class Limits:
    """Largest relative differences."""

    metrics: float
    weights: float
    """Of all differences' norm to the norm of the weights."""


EXACT: Final = Limits(1e-6, 1e-8)
"""float64 on CPUs: what the placement of roles may change."""
ROUNDED: Final = Limits(1e-3, 1e-4)
"""float32, which on a CPU is 8e-6 and 8e-7 from float64 after as many iterations; and float64 on a
GPU, since norms and rotations of transformers are float32 whatever the weights are."""


def compare(agreement: Agreement, name: str, run: Path, expected: Path, limits: Limits) -> None:
    """Prints how far a run is from another one.

    Args:
        agreement: prints, and remembers what is too far.
        name: of the run.
        run: its folder.
        expected: the folder that it is measured by.
        limits: how far it may be.
    """
    ours, theirs = (_rows(folder / "samples.jsonl") for folder in (run, expected))
    tokens = [[(row["sample_id"], row["response"]) for row in rows] for rows in (ours, theirs)]
    agreement.same(f"{name}: {len(theirs)} answers", tokens[0], tokens[1])
    for what, prefixes in (("rewards, KL, entropy", _JUDGED), ("losses, gradients", _LOSSES)):
        agreement.within(f"{name}: {what}", _metrics(run, expected, prefixes), limits.metrics)
    for role in ("actor", "critic"):
        agreement.within(f"{name}: {role}", _weights(run, expected, role), limits.weights)


def seconds(run: Path) -> str:
    """Returns the words for the times of the last iteration."""
    row = _rows(run / "metrics.jsonl")[-1]
    parts = ("generate", "score", "train", "sync")
    said = (f"{part} {row[f'time/{part}_s']:.3f}" for part in parts if f"time/{part}_s" in row)
    peak = f"peak {row['memory/peak_bytes'] / 1e6:.0f} MB a worker"
    return f"{row['time/iteration_s']:.3f} s an iteration ({', '.join(said)}), {peak}"


def _metrics(run: Path, expected: Path, prefixes: tuple[str, ...]) -> float:
    """Returns the largest relative difference of the metrics that begin so."""
    apart = 0.0
    pairs = zip(_rows(run / "metrics.jsonl"), _rows(expected / "metrics.jsonl"), strict=True)
    for row, other in pairs:
        keys = [key for key in other if key.startswith(prefixes)]
        if any(key not in row for key in keys):
            return float("inf")
        for key in keys:
            apart = max(apart, abs(row[key] - other[key]) / max(abs(other[key]), _FLOOR))
    return apart


def _weights(run: Path, expected: Path, role: str) -> float:
    ours, theirs = (_flat(folder / "model" / role) for folder in (run, expected))
    if ours.shape != theirs.shape:
        return float("inf")
    return float(torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs))


def _flat(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
