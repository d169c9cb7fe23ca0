"""What several strategies share: roles everywhere or on parts, and how parts may be cut."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, in_order
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.device_type import DeviceType

Devices = dict[Role, tuple[int, ...]]


def everywhere(spec: AlgorithmSpec, devices: Sequence[int]) -> Devices:
    """Returns every role on all of `devices`."""
    return dict.fromkeys(in_order(spec.roles), tuple(devices))


def with_own_places(
    spec: AlgorithmSpec, devices: Sequence[int], own: Mapping[Role, tuple[int, ...]]
) -> Devices:
    """Returns every role on all of `devices`, but some on their own."""
    placed = everywhere(spec, devices) | dict(own)
    return {role: placed[role] for role in in_order(placed)}


def rewards_hosted_apart(
    roles: Iterable[Role], devices: Sequence[int], rewards: Collection[Role]
) -> Devices:
    """Returns every role on all devices but the last, which holds the models of `rewards` alone.

    Source: trlX, examples/hh/README.md: training on 7 devices, the 8th hosts the reward model.
    """
    others, host = tuple(devices[:-1]), tuple(devices[-1:])
    return {role: host if role in rewards else others for role in roles}


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """Returns every way to write `total` as an ordered sum of `parts` counts above 0.

    The most even ones come first.
    """
    return sorted(_ways(total, parts), key=lambda way: max(way) - min(way))


def _ways(total: int, parts: int) -> Iterable[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total - parts + 1, 0, -1):
        for rest in _ways(total - first, parts - 1):
            yield (first, *rest)


def devices_per_node(cluster: Cluster) -> int:
    """Returns the largest number that divides the devices of every node."""
    return math.gcd(*(len(node.devices) for node in cluster.nodes))


def tensor_sizes(cluster: Cluster) -> list[int]:
    """Returns the ways to split a matrix inside a node, over 2 devices at least."""
    size = devices_per_node(cluster)
    return [part for part in range(2, size + 1) if size % part == 0]


def speed(device: DeviceType) -> float:
    """Returns what orders devices from fast to slow: their dense peak in half precision."""
    return device.peak_flops("bfloat16")


def fastest_node(cluster: Cluster) -> Node:
    """Returns the node that computes most, the first of equals."""
    return max(cluster.nodes, key=lambda node: speed(node.device) * len(node.devices))


def parts_worth_trying(cluster: Cluster) -> list[Cluster]:
    """Returns parts of a cluster on which a plan may be faster than on all of it, largest first.

    A slow device makes those wait that share its work, and a number of nodes that is no power of
    two seldom divides a batch: so without the slower types, and with fewer nodes.
    """
    speeds = sorted({speed(node.device) for node in cluster.nodes})
    parts = [
        [node for node in cluster.nodes if speed(node.device) >= least] for least in speeds[1:]
    ]
    whole_nodes = 1 << (len(cluster.nodes).bit_length() - 1)
    if len(speeds) == 1 and whole_nodes < len(cluster.nodes):
        parts.append(list(cluster.nodes[:whole_nodes]))
    return [cluster.subset(d for node in part for d in node.devices) for part in parts]


def has_unlike_devices(cluster: Cluster) -> bool:
    """Whether the nodes have devices of more than one type."""
    return len({node.device.name for node in cluster.nodes}) > 1
