"""Cluster: nodes with their devices, and the links between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import device_type, usual_link
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: devices of one type that share a link."""

    index: int
    device: DeviceType
    devices: tuple[int, ...]
    """Their numbers in the cluster, ascending."""
    link: Link
    """Between the devices of the node."""
    pool: str
    """Name of the group of equal nodes that it belongs to."""
    address: str | None = None
    """Of a machine of a Ray cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, and how they are joined."""

    nodes: tuple[Node, ...]
    between: Mapping[frozenset[str], Link] = field(hash=False)
    """Link between nodes of two pools; a pool with itself: between its own nodes."""
    _homes: Mapping[int, Node] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        homes = {device: node for node in self.nodes for device in node.devices}
        if not homes:
            raise ConfigError(
                "The cluster has no devices.",
                "A cluster has at least one node with one device.",
                "Name some nodes.",
            )
        if len(homes) != sum(len(node.devices) for node in self.nodes):
            raise ConfigError(
                "A device number stands in two nodes, or twice in one.",
                "Each device belongs to one node.",
                "Number the devices through.",
            )
        object.__setattr__(self, "_homes", homes)
        object.__setattr__(self, "_hash", hash(self.nodes))

    def __hash__(self) -> int:
        """Returns a number kept from the start: a search looks up clusters thousands of times."""
        return self._hash

    @classmethod
    def uniform(
        cls,
        device: str | DeviceType,
        *,
        nodes: int,
        devices_per_node: int,
        link: str | Link | None = None,
        between: str | Link = "InfiniBand-8x200G",
    ) -> Cluster:
        """Returns a cluster of equal nodes, all in the pool `all`.

        Args:
            device: a type, or its name in the catalogue.
            nodes: how many, at least 1.
            devices_per_node: at least 1.
            link: inside a node; the usual one of the device's type if not given.
            between: between nodes.

        Raises:
            ConfigError: a name is not in the catalogue, or a count is below 1.
        """
        if min(nodes, devices_per_node) < 1:
            raise ConfigError(
                f"A cluster of {nodes} nodes with {devices_per_node} devices each.",
                "Both counts are at least 1.",
                "Correct the counts.",
            )
        kind = device_type(device) if isinstance(device, str) else device
        inside = link_type(link) if isinstance(link, str) else link or usual_link(kind)
        outside = link_type(between) if isinstance(between, str) else between
        return cls(
            nodes=tuple(
                Node(
                    index=index,
                    device=kind,
                    devices=tuple(range(index * devices_per_node, (index + 1) * devices_per_node)),
                    link=inside,
                    pool="all",
                )
                for index in range(nodes)
            ),
            between={frozenset({"all"}): outside},
        )

    @property
    def devices(self) -> tuple[int, ...]:
        """Every device, node by node."""
        return tuple(self._homes)

    @property
    def num_devices(self) -> int:
        """How many devices all nodes have together."""
        return len(self._homes)

    @property
    def pools(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes of each pool, in the order of the nodes."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.pool, []).append(node)
        return {pool: tuple(nodes) for pool, nodes in found.items()}

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are equal and joined by the same link."""
        kinds = {(node.device, len(node.devices), node.link) for node in self.nodes}
        links = {
            self.link_between(first, second)
            for first, second in zip(self.nodes, self.nodes[1:], strict=False)
        }
        return len(kinds) == 1 and len(links) <= 1

    def node_of(self, device: int) -> Node:
        """Returns the node that holds a device.

        Raises:
            ConfigError: the cluster has no such device.
        """
        try:
            return self._homes[device]
        except KeyError:
            raise ConfigError(
                f"There is no device {device}.",
                f"The cluster has {self.num_devices} devices, {_range_of(self.devices)}.",
                "Change the list of devices, or describe a larger cluster.",
            ) from None

    def device_type(self, device: int) -> DeviceType:
        """Returns what kind a device is.

        Raises:
            ConfigError: the cluster has no such device.
        """
        return self.node_of(device).device

    def nodes_of(self, devices: Iterable[int]) -> tuple[Node, ...]:
        """Returns the nodes that hold any of the devices, in the order of the nodes.

        Raises:
            ConfigError: the cluster has no such device.
        """
        return _nodes_of(self, tuple(devices))

    def link_between(self, first: Node, second: Node) -> Link:
        """Returns what joins two nodes; of a node with itself, what joins its devices.

        Raises:
            ConfigError: the cluster does not say how their pools are joined.
        """
        if first.index == second.index:
            return first.link
        try:
            return self.between[frozenset((first.pool, second.pool))]
        except KeyError:
            raise ConfigError(
                f"No link joins pool {first.pool!r} with pool {second.pool!r}.",
                "The cluster names a link for each two pools, and for each pool of several nodes.",
                "Add it to `links`.",
            ) from None

    def price_per_hour(self, devices: Iterable[int] | None = None) -> float | None:
        """Returns what devices cost in USD per hour, None where the price of one is not known.

        Args:
            devices: whose price is asked for; every device if not given.

        Raises:
            ConfigError: the cluster has no such device.
        """
        wanted = self.devices if devices is None else devices
        prices = [self.device_type(device).price_per_hour for device in wanted]
        known = [price for price in prices if price is not None]
        return math.fsum(known) if len(known) == len(prices) else None

    def subset(self, devices: Iterable[int]) -> Cluster:
        """Returns the cluster that consists of some devices, with the numbers that they have.

        Raises:
            ConfigError: the cluster has no such device.
        """
        wanted = set(devices)
        nodes = (
            replace(node, devices=tuple(d for d in node.devices if d in wanted))
            for node in self.nodes_of(wanted)
        )
        return Cluster(tuple(nodes), self.between)

    def __str__(self) -> str:
        alike = Counter((node.pool, len(node.devices), node.device.name) for node in self.nodes)
        return ", ".join(
            f"{nodes} x {devices} {name} ({pool})" for (pool, devices, name), nodes in alike.items()
        )


@lru_cache(maxsize=4096)
def _nodes_of(cluster: Cluster, devices: tuple[int, ...]) -> tuple[Node, ...]:
    """Kept, since a search asks for the nodes of the same devices again and again."""
    held = {node.index: node for node in map(cluster.node_of, devices)}
    return tuple(held[index] for index in sorted(held))


def _range_of(devices: tuple[int, ...]) -> str:
    first, last = min(devices, default=0), max(devices, default=0)
    return f"{first} to {last}"
