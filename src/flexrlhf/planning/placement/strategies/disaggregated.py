"""disaggregated: some devices train, others generate and score.

On unlike devices this is the paper's heterogeneous placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import PoolName
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import has_unlike_devices, speed
from flexrlhf.planning.placement.pools import place_pools, pool_roles
from flexrlhf.planning.placement.shares import consecutive

_NAME: Final = "disaggregated"
_MOST_PARTS: Final = 16
"""Into how many parts the devices are cut at most, where a share is tried."""
_FEWEST_PARTS: Final = 8
_SCORE_SHARES: Final = (Fraction(1, 16), Fraction(1, 8), Fraction(1, 4))
"""Sizes of a scoring pool of its own that are tried; scoring takes a twentieth of the time."""

Ranges = dict[PoolName, tuple[int, ...]]


def disaggregated(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns pools of many sizes, with scoring inside the generating pool and apart from it.

    The training pool takes the first devices. On unlike devices it takes the fastest ones in half
    of the arrangements, the slowest ones in the others.
    """
    if why := why_not_disaggregated(spec, cluster):
        return Refusal(_NAME, why)
    found = [
        pooled(spec, ranges)
        for order in _orders(cluster)
        for ranges in _divisions(spec, order, _cuts(cluster, order))
    ]
    return [a for i, a in enumerate(found) if a.devices not in [b.devices for b in found[:i]]]


def why_not_disaggregated(spec: AlgorithmSpec, cluster: Cluster) -> str:
    """Returns why devices cannot be divided between training and generation, or nothing."""
    if not spec.generates:
        return f"{spec.name} generates nothing, so no devices can be set apart for it."
    if cluster.num_devices < 2:
        return "One device cannot be divided between training and generation."
    return ""


def pooled(spec: AlgorithmSpec, ranges: Ranges) -> Arrangement:
    """Returns the arrangement with these pools, all roles of a pool on the whole of it."""
    said = ", ".join(f"{name} on {len(devices)}" for name, devices in ranges.items())
    inside = "" if "score" in ranges else "; scoring shares the devices that generate"
    note = f"Pools of devices: {said}{inside}."
    return Arrangement(_NAME, place_pools(spec, ranges, {}), note)


def _orders(cluster: Cluster) -> list[tuple[int, ...]]:
    """The devices in the order in which pools take them."""
    if not has_unlike_devices(cluster):
        return [cluster.devices]
    by_speed = {d: speed(cluster.device_type(d)) for d in cluster.devices}
    return [tuple(sorted(by_speed, key=lambda device: sign * by_speed[device])) for sign in (-1, 1)]


def _cuts(cluster: Cluster, order: Sequence[int]) -> list[int]:
    """Where the training pool may end: after even parts, and where the type of device changes."""
    total = len(order)
    fitting = [n for n in range(_FEWEST_PARTS, _MOST_PARTS + 1) if total % n == 0]
    parts = total if total <= _MOST_PARTS else max(fitting, default=_MOST_PARTS)
    even = {total * part // parts for part in range(1, parts)}
    types = [cluster.device_type(device).name for device in order]
    changes = {place for place, (a, b) in enumerate(pairwise(types), start=1) if a != b}
    return sorted(even | changes)


def _divisions(spec: AlgorithmSpec, order: Sequence[int], cuts: Sequence[int]) -> Iterator[Ranges]:
    total = len(order)
    has_scoring = bool(pool_roles(spec, has_score=True)["score"])
    sizes = {max(1, int(share * total)) for share in _SCORE_SHARES} if has_scoring else ()
    for cut in cuts:
        train, generate = consecutive(order, (cut, total - cut))
        yield {"train": train, "generate": generate}
        for size in sorted(sizes):
            if cut + size < total:
                train, score, generate = consecutive(order, (cut, size, total - cut - size))
                yield {"train": train, "score": score, "generate": generate}
