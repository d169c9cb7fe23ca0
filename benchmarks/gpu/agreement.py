"""How far a device and the CPU are apart in one thing, and whether that is near enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Agreement:
    """Prints one line per comparison and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False

    def same(self, what: str, found: Any, expected: Any) -> None:
        """The two must be equal."""
        self._say(found == expected, f"{what}: {'the same' if found == expected else 'DIFFERS'}")

    def near(self, what: str, found: Tensor, expected: Tensor, limit: float) -> None:
        """The largest difference must not exceed `limit` of the largest number."""
        self.within(what, apart(found, expected), limit)

    def within(self, what: str, difference: float, limit: float) -> None:
        """A difference must not exceed a limit; nan does."""
        is_near = difference <= limit
        said = "" if is_near else "  TOO FAR"
        self._say(is_near, f"{what}: {difference:.1e} apart (limit {limit:.0e}){said}")

    def _say(self, is_well: bool, line: str) -> None:  # noqa: FBT001 - private, one caller a line
        self.failed = self.failed or not is_well
        print(f"  {line}", flush=True)


def apart(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the largest number that is expected."""
    ours, theirs = found.detach().double().cpu(), expected.detach().double().cpu()
    if ours.shape != theirs.shape:
        return float("inf")
    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
    difference = float((ours - theirs).abs().max()) if theirs.numel() else 0.0
    return difference / scale if scale else difference


def limits(dtype: torch.dtype) -> float:
    """Returns how far rounding alone may bring a sum of some thousand numbers apart."""
    return {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
