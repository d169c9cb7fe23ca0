"""The machines of a Ray cluster, as planning knows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.config.cluster import RayCluster
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import device_type, usual_link
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import this_machine
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.runtime.ray_cluster import session

_POOL: Final = "ray"
_BETWEEN: Final = "Ethernet-10G"
"""Ray does not know how its machines are joined."""


def joined_cluster(setting: RayCluster) -> Cluster:
    """Joins the Ray cluster of a config and returns its machines, those with most devices first.

    Raises:
        ConfigError: there is no such cluster, or it has no devices, or fewer than asked for.
    """
    session.join(setting.ray)
    found = session.nodes()
    is_gpu = any(node.gpus >= 1 for node in found)
    sizes = [int(node.gpus if is_gpu else node.cpus) for node in found]
    total, wanted = sum(sizes), setting.workers
    if total < max(1, wanted or 1):
        kind = "GPU" if is_gpu else "CPU"
        raise ConfigError(
            f"cluster.workers = {wanted}, but the Ray cluster {setting.ray!r} has {total} free "
            f"{kind}s on {len(found)} machines.",
            "A worker takes one of them.",
            "Lower cluster.workers, wait until other runs have ended, or add machines.",
        )
    kind = this_machine().nodes[0].device if is_gpu else device_type("cpu-core")
    nodes: list[Node] = []
    first, left = 0, wanted or total
    for node, size in sorted(zip(found, sizes, strict=True), key=lambda pair: -pair[1]):
        count = min(size, left)
        if count == 0:
            continue
        share = replace(kind, memory_bytes=int(node.memory_bytes // max(1, size)))
        device = kind if is_gpu else share
        devices = tuple(range(first, first + count))
        nodes.append(Node(len(nodes), device, devices, usual_link(kind), _POOL))
        first, left = first + count, left - count
    return Cluster(tuple(nodes), {frozenset({_POOL}): link_type(_BETWEEN)})
