"""The machines of a Ray cluster with the links and speeds that a profile measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Final

from flexrlhf.core.relative_speeds import stepped
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.profiled.joined_machines import JoinedMachines
from flexrlhf.planning.costs.profiled.profile import Profile

_CORE: Final = "cpu-core"


def measured_cluster(found: Cluster, profile: Profile) -> Cluster:
    """Returns the machines as the profile says that they are.

    Where some links are much faster than others, each machine is a pool of its own; else machines
    whose devices are alike make one, and the slowest of its links counts.

    Args:
        found: the machines, with addresses.
        profile: with what joins them.

    Raises:
        ConfigError: a machine was not measured.
    """
    joined = profile.joined
    assert joined is not None, "who calls has looked"
    addresses = [node.address or "" for node in found.nodes]
    speeds = _speeds(found.nodes, joined)
    is_own = len(addresses) > 1 and not joined.are_alike(addresses)
    nodes = [
        replace(
            node,
            device=_device(node.device, profile, speed),
            pool=(node.address or node.pool) if is_own else _pool(node, speed),
        )
        for node, speed in zip(found.nodes, speeds, strict=True)
    ]
    return Cluster(tuple(nodes), _links(nodes, joined))


@dataclass(frozen=True, slots=True)
class _Speed:
    """Of a machine's workers, coarse enough that noise is no difference."""

    by_profile: float
    """By the process that the rest of the profile was measured with."""
    by_peers: float
    """By the fastest machine with devices of the same type."""


def _speeds(nodes: Sequence[Node], joined: JoinedMachines) -> list[_Speed]:
    found = [joined.speed_of(node.address or "") for node in nodes]
    speeds: list[_Speed] = []
    for node, own in zip(nodes, found, strict=True):
        kind = node.device.name
        peers = [s for other, s in zip(nodes, found, strict=True) if other.device.name == kind]
        part, _ = stepped((own, max(peers)))
        speeds.append(_Speed(part * max(peers), part))
    return speeds


def _device(kind: DeviceType, profile: Profile, speed: _Speed) -> DeviceType:
    """Returns what a worker of a machine is: a core as measured, a GPU slower than its peers."""
    part, flops, bandwidth = speed.by_peers, kind.flops, kind.memory_bandwidth
    if kind.name == _CORE and profile.workers is not None:
        own = profile.workers.costs
        part, flops, bandwidth = (
            speed.by_profile,
            {own.dtype: own.most_flops},
            own.memory.read_bandwidth,
        )
    return replace(
        kind,
        flops={dtype: value * part for dtype, value in flops.items()},
        memory_bandwidth=bandwidth * part,
    )


def _pool(node: Node, speed: _Speed) -> str:
    return node.pool if speed.by_peers == 1.0 else f"{node.pool} at {speed.by_peers:.2f}"


def _links(nodes: Sequence[Node], joined: JoinedMachines) -> dict[frozenset[str], Link]:
    pools: dict[str, list[str]] = {}
    for node in nodes:
        pools.setdefault(node.pool, []).append(node.address or "")
    pairs = combinations_with_replacement(pools, 2)
    found = {frozenset((a, b)): joined.slowest(pools[a], pools[b]) for a, b in pairs}
    return {pair: link for pair, link in found.items() if link is not None}
