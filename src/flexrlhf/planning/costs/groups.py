"""Which devices talk to each other, and over what."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.layout import Layout


@dataclass(frozen=True, slots=True)
class CommunicationGroup:
    """Devices that run collectives with each other."""

    size: int
    inside: Link
    """Slowest link inside the nodes; per device."""
    between: Link | None = None
    """Slowest link between the nodes; per node. None where one node holds the group."""
    rivals: int = 1
    """Groups of the same kind that share a node's adapters with it, itself among them."""
    nodes: int = 1
    """Nodes over which it is spread."""

    @property
    def latency_s(self) -> float:
        """Seconds of one hop."""
        return (self.between or self.inside).latency_s


def tensor_group(cluster: Cluster, devices: Sequence[int], layout: Layout) -> CommunicationGroup:
    """Returns the first tensor-parallel group: neighbours."""
    return _group(cluster, tuple(devices), range(layout.tensor))


def data_group(cluster: Cluster, devices: Sequence[int], layout: Layout) -> CommunicationGroup:
    """Returns the group that reduces the gradients of one shard: every `tensor`-th device."""
    positions = range(0, layout.tensor * layout.data, layout.tensor)
    return _group(cluster, tuple(devices), positions)


def shard_group(cluster: Cluster, devices: Sequence[int], layout: Layout) -> CommunicationGroup:
    """Returns the group over which ZeRO shards: the first `shard` members of a data group."""
    positions = range(0, layout.tensor * layout.shard, layout.tensor)
    return _group(cluster, tuple(devices), positions)


def replica_group(cluster: Cluster, devices: Sequence[int], layout: Layout) -> CommunicationGroup:
    """Returns the group of equal shards, one in each block of a hybrid sharding."""
    step = layout.tensor * layout.shard
    positions = range(0, layout.tensor * layout.data, step)
    return _group(cluster, tuple(devices), positions)


def pipeline_link(cluster: Cluster, devices: Sequence[int], layout: Layout) -> Link:
    """Returns the link over which one pipeline stage hands to the next."""
    step = layout.tensor * layout.data
    first, second = cluster.node_of(devices[0]), cluster.node_of(devices[step % len(devices)])
    return cluster.link_between(first, second)


@lru_cache(maxsize=1024)
def slowest_device(cluster: Cluster, devices: tuple[int, ...], dtype: str) -> DeviceType:
    """Returns the type among the devices that computes slowest; the others wait for it."""
    types = (node.device for node in cluster.nodes_of(devices))
    return min(types, key=lambda kind: kind.peak_flops(dtype))


@lru_cache(maxsize=1024)
def mean_device(cluster: Cluster, devices: tuple[int, ...], dtype: str) -> DeviceType:
    """Returns a type as fast as the devices are on average.

    Work that is divided by their speeds takes them as long as equal parts take so many of it.
    """
    slowest = slowest_device(cluster, devices, dtype)
    types = [cluster.device_type(device) for device in devices]
    if all(kind == slowest for kind in types):
        return slowest
    return replace(
        slowest,
        flops={dtype: statistics.fmean(kind.peak_flops(dtype) for kind in types)},
        memory_bandwidth=statistics.fmean(kind.memory_bandwidth for kind in types),
    )


@lru_cache(maxsize=4096)
def _group(cluster: Cluster, devices: tuple[int, ...], positions: range) -> CommunicationGroup:
    members = [devices[position] for position in positions]
    nodes = cluster.nodes_of(members)
    inside = min((node.link for node in nodes), key=lambda link: link.bandwidth)
    if len(nodes) == 1:
        return CommunicationGroup(len(members), inside)
    links = [cluster.link_between(a, b) for a, b in pairwise(nodes)]
    between = min(links, key=lambda link: link.bandwidth)
    rivals = _rivals(cluster, devices, members)
    return CommunicationGroup(len(members), inside, between, rivals, len(nodes))


def _rivals(cluster: Cluster, devices: Sequence[int], members: Sequence[int]) -> int:
    """Groups of this kind on the fullest node: its devices over the members it holds."""
    held = Counter(cluster.node_of(device).index for device in members)
    present = Counter(cluster.node_of(device).index for device in devices)
    return max(max(1, present[node] // count) for node, count in held.items())
