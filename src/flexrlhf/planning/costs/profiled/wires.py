"""What the ways between machines add to what processes of one machine cost each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.groups import (
    CommunicationGroup,
    data_group,
    pipeline_link,
    shard_group,
    tensor_group,
)
from flexrlhf.planning.costs.layout import Layout

REACHED: Final = DEFAULT.network_efficiency
"""Share of a link's peak that programs reach, where nobody has measured it."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The links under a group of processes; those of one machine have none."""

    size: int = 1
    rate: float = math.inf
    """Bytes/s at which each member sends along the ring."""
    latency_s: float = 0.0

    def round_s(self, num_bytes: float, messages: float = 1.0) -> float:
        """Returns the seconds in which each member gets what the others have, or their sums.

        A gather is one round, a sum over everybody two.

        Args:
            num_bytes: of the whole.
            messages: in which they come.

        Source: as for `collectives.py`.
        """
        hops = max(1, (self.size - 1).bit_length())
        return self.size_share * num_bytes / self.rate + messages * hops * self.latency_s

    @property
    def size_share(self) -> float:
        """The part of all bytes that passes each member's link."""
        return (self.size - 1) / self.size


@dataclass(frozen=True, slots=True)
class Wires:
    """Those of one role."""

    tensor: Wire = Wire()
    engine: Wire = Wire()
    """Of the processes that generate as one."""
    shard: Wire = Wire()
    data: Wire = Wire()
    stages: Wire = Wire()
    """From one pipeline stage to the next."""


def wires_of(cluster: Cluster, devices: Sequence[int], layout: Layout, engine_tensor: int) -> Wires:
    """Returns the wires of a role.

    Args:
        cluster: the machines.
        devices: that hold the role.
        layout: of its weights.
        engine_tensor: processes that generate as one.
    """
    engine = Layout(tensor=engine_tensor, data=len(devices) // engine_tensor)
    return Wires(
        tensor=_wire(tensor_group(cluster, devices, layout)),
        engine=_wire(tensor_group(cluster, devices, engine)),
        shard=_wire(shard_group(cluster, devices, layout)),
        data=_wire(data_group(cluster, devices, layout)),
        stages=_between_stages(cluster, devices, layout),
    )


def _wire(group: CommunicationGroup) -> Wire:
    if group.between is None:
        return Wire(group.size)
    rate = group.between.rate(REACHED) / group.rivals
    return Wire(group.size, rate, group.between.latency_s)


def _between_stages(cluster: Cluster, devices: Sequence[int], layout: Layout) -> Wire:
    if layout.pipeline == 1:
        return Wire()
    first, second = devices[0], devices[layout.tensor * layout.data]
    if cluster.node_of(first) == cluster.node_of(second):
        return Wire()
    link = pipeline_link(cluster, devices, layout)
    return Wire(2, link.rate(REACHED), link.latency_s)
