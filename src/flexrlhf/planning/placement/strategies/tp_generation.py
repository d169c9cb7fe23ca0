"""tp_generation: all on all devices, and the actor generates by tensor parallelism inside nodes."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import everywhere
from flexrlhf.planning.placement.split_generation import split_generation

_NAME: Final = "tp_generation"


def tp_generation(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns one arrangement for each number of devices that divides the nodes."""
    if not spec.generates:
        return Refusal(_NAME, f"{spec.name} generates nothing that could be split.")
    devices = everywhere(spec, cluster.devices)
    found = split_generation(Arrangement(_NAME, devices, "All roles are on all devices."), cluster)
    return found or Refusal(_NAME, "No number of devices above 1 divides every node.")
