"""A robust least-squares fit of positive constants on the logarithm of predicted over measured.

Gauss-Newton with Huber weights in the constants' logarithms; a weak prior holds each constant near
where it began, so that what no row depends on stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_HUBER: Final = 0.05
"""Log error up to which a row counts in full; beyond it counts less."""
_PRIOR: Final = 0.7
"""Standard deviation of a constant's logarithm around its beginning."""
_NOISE: Final = 0.15
_STEP: Final = 0.05
_LARGEST_MOVE: Final = 0.5


@dataclass(frozen=True)
class LinearView:
    """Residuals and their derivatives at one point, from which fits of fewer rows follow."""

    point: Vector
    start: Vector
    residuals: Vector
    jacobian: NDArray[np.float64]

    def solved(self, keep: NDArray[np.bool_]) -> Vector:
        """Returns the point that fits the kept rows best, as far as the view is linear."""
        move = np.zeros_like(self.point)
        for _ in range(30):
            residuals = (self.residuals + self.jacobian @ move)[keep]
            weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(residuals), 1e-9)) / _NOISE**2
            rows = self.jacobian[keep]
            prior = np.eye(len(move)) / _PRIOR**2
            normal = rows.T @ (weights[:, None] * rows) + prior
            gradient = rows.T @ (weights * residuals) + (self.point + move - self.start) / _PRIOR**2
            step = -np.linalg.solve(normal, gradient)
            move += step
            if np.abs(step).max(initial=0.0) < 1e-4:
                break
        return self.point + move


def view(residuals_at: Callable[[Vector], Vector], point: Vector, start: Vector) -> LinearView:
    """Returns residuals and finite differences at a point."""
    here = residuals_at(point)
    columns: list[Vector] = []
    for index in range(len(point)):
        moved = point.copy()
        moved[index] += _STEP
        columns.append((residuals_at(moved) - here) / _STEP)
    jacobian = np.stack(columns, axis=1) if columns else np.zeros((len(here), 0))
    return LinearView(point, start, here, jacobian)


def fitted(
    residuals_at: Callable[[Vector], Vector],
    start: Vector,
    *,
    bounds: Sequence[tuple[float, float]],
    begins: Sequence[Vector] = (),
    rounds: int = 8,
) -> LinearView:
    """Returns the view at the best point found.

    Args:
        residuals_at: log errors of all rows for the logarithms of the constants.
        start: where to begin, and the prior's centre.
        bounds: of the logarithms.
        begins: further places to begin, since there are several valleys; the deepest counts.
        rounds: Gauss-Newton steps at most.
    """
    found = [
        _descended(residuals_at, begin, start, bounds=bounds, rounds=rounds)
        for begin in (start, *begins)
    ]
    return min(found, key=lambda linear: _loss(linear.residuals, linear.point - start))


def _descended(
    residuals_at: Callable[[Vector], Vector],
    begin: Vector,
    start: Vector,
    *,
    bounds: Sequence[tuple[float, float]],
    rounds: int,
) -> LinearView:
    low, high = np.array(bounds).T if bounds else (start, start)
    best = view(residuals_at, np.clip(begin, low, high), start)
    every = np.ones(len(best.residuals), dtype=bool)
    for _ in range(rounds):
        move = np.clip(best.solved(every) - best.point, -_LARGEST_MOVE, _LARGEST_MOVE)
        found = None
        for shrink in (1.0, 0.5, 0.2):
            point = np.clip(best.point + shrink * move, low, high)
            residuals = residuals_at(point)
            if _loss(residuals, point - start) < _loss(best.residuals, best.point - start) - 1e-6:
                found = point
                break
        if found is None:
            break
        gain = _loss(best.residuals, best.point - start) - _loss(residuals, found - start)
        best = view(residuals_at, found, start)
        if gain < 0.05:
            break
    return best


def _loss(residuals: Vector, moved: Vector) -> float:
    size = np.abs(residuals)
    huber = np.where(size <= _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2)) / _NOISE**2
    return float(huber.sum() + (moved**2).sum() / 2 / _PRIOR**2)
