"""Link: what joins devices of a node, or nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of connection; its peak, which no program reaches, unless it was measured."""

    name: str
    bandwidth: float
    """Bytes/s in one direction. Inside a node per device; between nodes per *node*, all adapters
    together."""
    latency_s: float
    """Of one message."""
    source: str
    is_measured: bool = False
    """Whether programs were seen to reach the bandwidth."""

    def rate(self, share: float) -> float:
        """Returns the bytes/s that programs reach.

        Args:
            share: of a peak that they reach.
        """
        return self.bandwidth if self.is_measured else self.bandwidth * share
