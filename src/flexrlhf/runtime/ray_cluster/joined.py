"""The machines of a Ray cluster, as planning knows them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Final

from flexrlhf.config.cluster import RayCluster
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES, device_type, usual_link
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.described_links import link_between
from flexrlhf.planning.cluster.detection import this_machine
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.profiled.measured_cluster import measured_cluster
from flexrlhf.planning.costs.profiled.profile import Profile, load_profile
from flexrlhf.planning.costs.profiled.setting import CORE
from flexrlhf.runtime.ray_cluster import session
from flexrlhf.runtime.ray_cluster.session import Kind, RayNode

_POOL: Final = "ray"
_BETWEEN: Final = "Ethernet-10G"
"""Ray does not know how its machines are joined; this is supposed where nobody says it."""
_SETTLE_S: Final = 10.0
"""How long a cluster may take to notice machines that joined and work that ended."""
_LOOK_S: Final = 0.5


def joined_cluster(setting: RayCluster) -> Cluster:
    """Joins the Ray cluster of a config and returns its machines, those with most devices first.

    Raises:
        ConfigError: there is no such cluster, or it has no devices, or fewer than asked for.
    """
    profile = None if setting.profile is None else load_profile(setting.profile)
    link = None if setting.links is None else link_between("cluster.links", setting.links)
    session.join(setting.ray)
    until_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            found = cluster_of_nodes(session.nodes(), setting, this_machine())
            return as_known(found, setting, profile, link)
        except ConfigError:
            if time.monotonic() > until_s:
                raise
        time.sleep(_LOOK_S)


def cluster_of_nodes(found: Sequence[RayNode], setting: RayCluster, here: Cluster) -> Cluster:
    """Returns what is free in a Ray cluster, those machines first that have most of it.

    Machines with unlike devices are pools of their own.

    Args:
        found: its machines.
        setting: how many workers are wanted.
        here: this machine, whose GPUs stand for those of which Ray does not know the type.

    Raises:
        ConfigError: nothing is free, or less than asked for, or nobody knows the GPUs.
    """
    kind: Kind = "GPU" if any(node.gpus >= 1 for node in found) else "CPU"
    left = sum(node.room(kind) for node in found)
    if left < max(1, setting.workers or 1):
        raise _shortfall(found, setting, kind)
    left = setting.workers or left
    nodes: list[Node] = []
    for node in sorted(found, key=lambda node: -node.room(kind)):
        count = min(node.room(kind), left)
        if count > 0:
            device = _device(node, kind, here)
            first = sum(len(earlier.devices) for earlier in nodes)
            devices = tuple(range(first, first + count))
            link = usual_link(device)
            nodes.append(Node(len(nodes), device, devices, link, _POOL, node.address))
            left -= count
    names = {node.device.name for node in nodes}
    if len(names) > 1:
        nodes = [replace(node, pool=node.device.name) for node in nodes]
    between = link_type(_BETWEEN)
    return Cluster(tuple(nodes), dict.fromkeys(_pairs(nodes), between))


def as_known(
    found: Cluster, setting: RayCluster, profile: Profile | None, link: Link | None
) -> Cluster:
    """Returns a Ray cluster with the link that the user names, else those that were measured.

    Args:
        found: its machines.
        setting: of the config.
        profile: that it names.
        link: that it names.

    Raises:
        ConfigError: the profile is of other machines.
    """
    if profile is not None and profile.joined is None:
        raise ConfigError(
            f"{setting.profile} says nothing of machines that are joined.",
            "A profile of a Ray cluster has a section `joined`.",
            "Measure it on a machine of the cluster: flexrlhf profile --ray auto --out FILE",
        )
    if profile is not None:
        found = measured_cluster(found, profile)
    if link is None:
        return found
    return Cluster(found.nodes, dict.fromkeys(_pairs(found.nodes), link))


def _pairs(nodes: Sequence[Node]) -> list[frozenset[str]]:
    pools = sorted({node.pool for node in nodes})
    return [frozenset(pair) for pair in combinations_with_replacement(pools, 2)]


def _device(node: RayNode, kind: Kind, here: Cluster) -> DeviceType:
    """Returns what a worker on a machine has: a GPU, or a core with its part of the memory."""
    if kind == "CPU":
        share = int(node.memory_bytes // max(1, node.room(kind)))
        return replace(device_type(CORE), memory_bytes=share)
    own = here.nodes[0].device
    known = [t for t in DEVICE_TYPES.values() if _is_called(t.name, node.accelerator)]
    if own in known or (not known and own.name != CORE):
        return own
    if not known:
        raise ConfigError(
            f"The GPUs of {node.address} are {node.accelerator or 'unknown'} to Ray, and this "
            "machine has none to tell from.",
            "Plans need a GPU's memory and speed: Ray names a type of the catalogue, or this "
            "machine has the same.",
            "Start the run on a machine of the cluster that has such GPUs.",
        )
    return min(known, key=lambda each: each.memory_bytes)  # Ray names A100, not which of them


def _is_called(name: str, accelerator: str | None) -> bool:
    return accelerator is not None and (name == accelerator or name.startswith(f"{accelerator}-"))


def _shortfall(found: Sequence[RayNode], setting: RayCluster, kind: Kind) -> ConfigError:
    asked = f"cluster.workers = {setting.workers}" if setting.workers else "a worker is wanted"
    there = "; ".join(node.words(kind) for node in found)
    return ConfigError(
        f"{asked}, but free in the Ray cluster {setting.ray!r} are: {there or 'no machine'}.",
        f"A worker takes a {kind}{' and a CPU' if kind == 'GPU' else ''}.",
        "Lower cluster.workers, wait until other runs have ended (`ray status`), or add machines.",
    )
