"""Fits the constants of every class to the published measurements, and writes them.

python benchmarks/accuracy/fit.py [CLASS ...]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from robust_fit import LinearView, Vector, fitted, view
from rows import Measured, measured_rows

from flexrlhf.planning.costs.calibration import DEFAULT, Calibration

TABLE: Final = Path(__file__).parents[2] / "src/flexrlhf/planning/costs/calibration.yaml"
FITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "unnamed": (
        "train_efficiency",
        "forward_efficiency",
        "link_efficiency",
        "network_efficiency",
        "congestion",
        "launch_s",
        "collective_s",
        "sync_efficiency",
    ),
    "a100": (
        "train_efficiency",
        "forward_efficiency",
        "decode_bandwidth",
        "launch_s",
        "fetch_s",
        "link_efficiency",
        "network_efficiency",
        "congestion",
    ),
    "a800": (
        "train_efficiency",
        "forward_efficiency",
        "decode_bandwidth",
        "launch_s",
        "collective_s",
        "network_efficiency",
    ),
    "engine": (
        "forward_efficiency",
        "decode_bandwidth",
        "collective_s",
        "launch_s",
        "task_s",
    ),
    "trainer": ("train_efficiency",),
    "h20": (
        "train_efficiency",
        "forward_efficiency",
        "decode_bandwidth",
        "sync_efficiency",
        "sync_s",
    ),
    "hopper": (
        "train_efficiency",
        "forward_efficiency",
        "decode_bandwidth",
        "collective_s",
    ),
    "blackwell": ("decode_bandwidth", "collective_s"),
}
"""Which constants the rows of a class can tell; the others keep their sources' values."""
MOST: Final[Mapping[str, float]] = {"train_efficiency": 0.6, "forward_efficiency": 0.75}
"""What no product of a whole model reaches. Source: llm-analysis README: at most 0.5 and 0.7."""
_SHARES: Final = ("_efficiency", "decode_bandwidth")


@dataclass(frozen=True)
class ClassFit:
    """One class, the rows it was fitted to, and the fit."""

    name: str
    constants: tuple[str, ...]
    rows: Sequence[Measured]
    linear: LinearView

    def calibration(self, point: Vector | None = None) -> Calibration:
        """Returns the constants at a point of the fit, the best one unless given."""
        return _calibration(
            self.name, self.constants, self.linear.point if point is None else point
        )

    def without(self, keep: Sequence[bool]) -> Calibration:
        """Returns the constants that the kept rows alone give, one Gauss-Newton solution away."""
        point = self.linear.solved(np.array(keep, dtype=bool))
        low, high = np.array([_bounds(constant) for constant in self.constants]).T
        return self.calibration(np.clip(point, low, high))


def fit_class(name: str, rows: Sequence[Measured], *, at: Calibration | None = None) -> ClassFit:
    """Returns the fit of one class.

    Args:
        name: of the class.
        rows: all measured rows.
        at: constants that were fitted before; the fit is then only looked at there.
    """
    used = [row for row in rows if row.class_name == name and row.is_fitted]
    constants = FITTED[name]
    tables = np.array([_table(row) for row in used])

    def residuals(point: Vector) -> Vector:
        calibration = _calibration(name, constants, point)
        errors = np.array([row.log_error(calibration) for row in used])
        for table in set(tables) - {""}:
            errors[tables == table] -= np.median(errors[tables == table])
        return errors

    start = np.log([getattr(DEFAULT, constant) for constant in constants])
    bounds = [_bounds(constant) for constant in constants]
    if at is not None:
        point = np.log([getattr(at, constant) for constant in constants])
        return ClassFit(name, constants, used, view(residuals, point, start))
    return ClassFit(
        name,
        constants,
        used,
        fitted(residuals, start, bounds=bounds, begins=_begins(constants, start)),
    )


def write(fits: Sequence[ClassFit], path: Path = TABLE) -> None:
    """Writes the constants of all classes; those of classes not given stay."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for fit in fits:
        calibration = fit.calibration()
        sources = sorted({row.source for row in fit.rows})
        document[fit.name] = {
            constant: float(f"{getattr(calibration, constant):.3g}") for constant in fit.constants
        } | {"source": f"fitted to {len(fit.rows)} rows of {', '.join(sources)}"}
    head = (
        "# Constants by class, written by benchmarks/accuracy/fit.py; others keep their defaults.\n"
    )
    path.write_text(head + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _calibration(name: str, constants: Sequence[str], point: Vector) -> Calibration:
    values = {c: float(math.exp(v)) for c, v in zip(constants, point, strict=True)}
    return replace(DEFAULT, name=name, **values)


def _begins(constants: Sequence[str], start: Vector) -> list[Vector]:
    """Slower products, then slower products and networks, each with dearer collectives."""
    moves = (
        {"train_efficiency": -1.4, "collective_s": 2.3},
        {"train_efficiency": -1.4, "network_efficiency": -1.0, "collective_s": 2.3},
    )
    return [start + np.array([move.get(constant, 0.0) for constant in constants]) for move in moves]


def _table(row: Measured) -> str:
    """The source inside which a row is compared; empty where its number stands for itself."""
    return row.source.partition("-")[0] if row.is_ratio else ""


def _bounds(constant: str) -> tuple[float, float]:
    if constant.endswith(_SHARES):
        return math.log(0.005), math.log(MOST.get(constant, 0.95))
    middle = getattr(DEFAULT, constant)
    return math.log(middle / 100), math.log(middle * 300)


if __name__ == "__main__":
    every = measured_rows()
    wanted = sys.argv[1:] or list(FITTED)
    found: list[ClassFit] = []
    for class_name in wanted:
        fit = fit_class(class_name, every)
        errors = np.abs(np.expm1(fit.linear.residuals))
        print(
            f"{class_name}: {len(fit.rows)} rows, median {np.median(errors):.0%},"
            f" 90th {np.quantile(errors, 0.9):.0%}",
            {c: float(f"{getattr(fit.calibration(), c):.3g}") for c in fit.constants},
        )
        found.append(fit)
    write(found)
