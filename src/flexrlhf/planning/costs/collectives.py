"""Seconds of collectives on rings.

Source: nccl-tests, doc/PERFORMANCE.md: with S the bytes of the whole result, a ring of n moves
(n-1)/n S over every link for all-gather and reduce-scatter, twice that for all-reduce.
"""

from __future__ import annotations

import math

from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.groups import CommunicationGroup


def all_gather_s(num_bytes: float, group: CommunicationGroup, calibration: Calibration) -> float:
    """Returns the seconds until every member has all `num_bytes`, of which each held a part.

    Args:
        num_bytes: of the whole result.
        group: the members.
        calibration: shares of the links' bandwidth that large messages reach.
    """
    return _ring_s(num_bytes, group, calibration, rounds=1)


def reduce_scatter_s(
    num_bytes: float, group: CommunicationGroup, calibration: Calibration
) -> float:
    """Returns the seconds until each member has its part of the sum of `num_bytes`."""
    return _ring_s(num_bytes, group, calibration, rounds=1)


def all_reduce_s(num_bytes: float, group: CommunicationGroup, calibration: Calibration) -> float:
    """Returns the seconds until every member has the sum of `num_bytes`."""
    return _ring_s(num_bytes, group, calibration, rounds=2)


def ring_rate(group: CommunicationGroup, calibration: Calibration) -> float:
    """Returns the bytes/s at which each member sends along the ring: the slowest link counts."""
    rate = group.inside.rate(calibration.link_efficiency)
    if group.between is not None:
        share = group.between.rate(calibration.network_efficiency) / group.rivals
        doublings = math.log2(max(1, group.nodes))
        rate = min(rate, share / (1 + calibration.congestion * doublings))
    return rate


def _ring_s(
    num_bytes: float, group: CommunicationGroup, calibration: Calibration, rounds: int
) -> float:
    if group.size == 1:
        return 0.0
    moved = num_bytes * (group.size - 1) / group.size
    hops_s = group.latency_s * _hops(group.size)
    return rounds * (moved / ring_rate(group, calibration) + hops_s)


def _hops(size: int) -> int:
    """Latencies in turn: small messages go along trees, so they grow with the logarithm."""
    return max(1, (size - 1).bit_length())


def late_s(group: CommunicationGroup, calibration: Calibration) -> float:
    """Returns what a collective costs beside its bytes: once for a node, more for several.

    Between nodes it takes a round more for each doubling of their number.
    """
    nodes = group.nodes if group.between is not None else 1
    return calibration.collective_s * (1 + (nodes - 1).bit_length())
