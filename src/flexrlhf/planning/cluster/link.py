"""Link: what joins devices of a node, or nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of connection; its peak, which no program reaches."""

    name: str
    bandwidth: float
    """Bytes/s in one direction. Inside a node per device; between nodes per *node*, all adapters
    together."""
    latency_s: float
    """Of one message."""
    source: str
