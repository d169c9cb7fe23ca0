"""colocated: every role on every device, in turn."""

from __future__ import annotations

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import everywhere


def colocated(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns the layout of DeepSpeed-Chat; how sharded weights generate is left open."""
    count = cluster.num_devices
    shared = f"the {count} devices" if count > 1 else "one device"
    note = f"All roles share {shared} and work in turn."
    return [Arrangement("colocated", everywhere(spec, cluster.devices), note)]
