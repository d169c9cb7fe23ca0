"""Processes that share a machine, as devices of a cluster."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import POOL
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts

_CORE: Final = "cpu-core"


def profiled_cluster(costs: WorkerCosts, memory_bytes: float, workers: int, nodes: int) -> Cluster:
    """Returns so many processes in equal groups that count as nodes.

    These numbers only order what the search looks at; what it finds is timed by the profile.

    Args:
        costs: of the processes.
        memory_bytes: of the machine, which they share.
        workers: processes.
        nodes: groups.

    Raises:
        ConfigError: the groups would not be equal.
    """
    if workers % nodes:
        raise ConfigError(
            f"cluster.workers = {workers} in cluster.nodes = {nodes} groups.",
            "The groups are equal.",
            "Change one of the two numbers.",
        )
    own, slowdown = costs.costs, costs.slowdown(workers)
    bandwidth = own.memory.read_bandwidth / slowdown
    kind = DeviceType(
        name=_CORE,
        memory_bytes=round(memory_bytes / workers),
        memory_bandwidth=bandwidth,
        flops={own.dtype: own.most_flops / slowdown},
        host_bandwidth=bandwidth,
        price_per_hour=None,
        source="measured by flexrlhf profile",
    )
    group = costs.group(max(2, min(workers, costs.groups[-1].ranks)))
    link = Link(
        "processes",
        bandwidth=1.0 / max(group.sum_byte_s, 1e-12),
        latency_s=group.message_s,
        source="measured by flexrlhf profile",
    )
    size = workers // nodes
    return Cluster(
        tuple(
            Node(number, kind, tuple(range(number * size, (number + 1) * size)), link, POOL)
            for number in range(nodes)
        ),
        {frozenset({POOL}): link},
    )
