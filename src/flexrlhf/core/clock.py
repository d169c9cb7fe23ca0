"""Time as a port, so that what measures spans can be driven by a clock of its own in tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards; only differences have a meaning."""

    def now_s(self) -> float:
        """Returns the present time."""
        ...


class WallClock:
    """Monotonic seconds since `origin_s`.

    Args:
        origin_s: the reading of `time.monotonic()` that counts as zero; the present one unless
            given. Processes of one machine that share it write comparable times.
    """

    __slots__ = ("origin_s",)

    def __init__(self, origin_s: float | None = None) -> None:
        self.origin_s = time.monotonic() if origin_s is None else origin_s

    def now_s(self) -> float:
        """Returns seconds since the origin."""
        return time.monotonic() - self.origin_s
