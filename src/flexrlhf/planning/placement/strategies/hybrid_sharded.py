"""hybrid_sharded: all on all devices, and ZeRO-3 shards inside each node, replicated over nodes."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import everywhere

_NAME: Final = "hybrid_sharded"


def hybrid_sharded(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns sharding of what is trained, and of every model; weights never cross nodes."""
    sizes = {len(node.devices) for node in cluster.nodes}
    if len(cluster.nodes) < 2:
        return Refusal(_NAME, "The cluster has one node, so all sharding is inside one anyway.")
    if len(sizes) > 1 or sizes == {1}:
        said = ", ".join(str(size) for size in sorted(sizes))
        return Refusal(_NAME, f"Nodes of {said} devices have no equal blocks to shard in.")
    inside = {"zero_stage": 3, "shard_devices": sizes.pop()}
    devices = everywhere(spec, cluster.devices)
    where = f"ZeRO-3 shards inside each node of {inside['shard_devices']} devices"
    return [
        Arrangement(_NAME, devices, f"{where}: {what}.", fixed=dict.fromkeys(roles, inside))
        for roles, what in (
            (spec.trained, "what is trained"),
            (spec.models, "every model"),
        )
    ]
