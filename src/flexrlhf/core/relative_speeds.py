"""Speeds of workers beside each other, coarse enough that noise is no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_STEPS: Final = 2
"""Per doubling: speeds that differ by less than a fifth count as equal."""


def stepped(speeds: Sequence[float]) -> tuple[float, ...]:
    """Returns speeds as parts of the fastest, in steps."""
    fastest = max(speeds)
    return tuple(2 ** (round(_STEPS * math.log2(speed / fastest)) / _STEPS) for speed in speeds)
