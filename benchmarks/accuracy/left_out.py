"""Every row's prediction with all data, without its configuration, and without its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fit import FITTED, ClassFit, fit_class
from rows import Measured

from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.classes import CLASSES


@dataclass(frozen=True)
class Judged:
    """One row and its predictions."""

    row: Measured
    predicted: float
    assumptions: str
    left_out: float
    """Without the configuration."""
    source_left_out: float | None
    """Without the source; None where its class has no other."""

    @property
    def error(self) -> float:
        """Relative, with all data."""
        return self.predicted / self.row.value - 1

    @property
    def left_out_error(self) -> float:
        """Relative, without the configuration."""
        return self.left_out / self.row.value - 1

    @property
    def source_error(self) -> float | None:
        """Relative, without the source."""
        if self.source_left_out is None:
            return None
        return self.source_left_out / self.row.value - 1


def judged_rows(rows: Sequence[Measured]) -> list[Judged]:
    """Returns all rows judged, class by class with the constants that are shipped."""
    judged: list[Judged] = []
    for name in dict.fromkeys(row.class_name for row in rows):
        members = [row for row in rows if row.class_name == name]
        fit = fit_class(name, rows, at=CLASSES[name]) if name in FITTED else None
        judged += _judged_class(members, fit)
    order = {row.identity: place for place, row in enumerate(rows)}
    return sorted(judged, key=lambda item: order[item.row.identity])


def _judged_class(members: Sequence[Measured], fit: ClassFit | None) -> list[Judged]:
    by_configuration: dict[tuple[str, ...], Calibration | None] = {}
    by_source: dict[str, Calibration | None] = {}
    judged: list[Judged] = []
    for row in members:
        if row.configuration not in by_configuration:
            by_configuration[row.configuration] = _without(fit, configuration=row.configuration)
        if row.source not in by_source:
            by_source[row.source] = _without_source(fit, row.source)
        answer = row.predicted()
        assert answer.value is not None
        left = row.predicted(by_configuration[row.configuration]).value
        other = by_source[row.source]
        source_left = None if other is None else row.predicted(other).value
        assert left is not None
        judged.append(Judged(row, answer.value, answer.assumptions, left, source_left))
    return judged


def _without(fit: ClassFit | None, *, configuration: tuple[str, ...]) -> Calibration | None:
    if fit is None:
        return None
    return fit.without([row.configuration != configuration for row in fit.rows])


def _without_source(fit: ClassFit | None, source: str) -> Calibration | None:
    if fit is None:
        return None
    keep = [row.source != source for row in fit.rows]
    return fit.without(keep) if any(keep) else None


def by_class(judged: Sequence[Judged]) -> Mapping[str, list[Judged]]:
    """Returns judged rows by class, in order of appearance."""
    found: dict[str, list[Judged]] = {}
    for item in judged:
        found.setdefault(item.row.class_name, []).append(item)
    return found
