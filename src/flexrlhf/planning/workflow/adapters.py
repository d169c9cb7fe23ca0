"""The links of nodes towards other nodes, which everything that leaves a node shares."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from flexrlhf.planning.cluster.cluster import Cluster, Node


def adapter(node: int) -> str:
    """Returns the name of a node's link."""
    return f"node{node}"


@lru_cache(maxsize=64)
def adapters(cluster: Cluster, efficiency: float) -> Mapping[str, float]:
    """Returns the bytes/s of one shared link per node: all its adapters towards other nodes.

    Where links were measured, a node's is the fastest that it has: to others it is slower because
    of them.

    Args:
        cluster: the machines.
        efficiency: share of a link's peak that programs reach.
    """
    nodes = cluster.nodes
    if len(nodes) == 1:
        return {}
    rates: dict[str, float] = {}
    for node in nodes:
        link = cluster.link_between(node, nodes[node is nodes[0]])
        rate = link.rate(efficiency)
        if link.is_measured:
            others = (cluster.link_between(node, other) for other in nodes if other is not node)
            rate = max(each.rate(efficiency) for each in others)
        rates[adapter(node.index)] = rate
    return rates


def narrowing(cluster: Cluster, one: Node, other: Node, efficiency: float) -> float:
    """Returns how much longer two nodes' adapters are occupied because of what lies between.

    Args:
        cluster: the machines.
        one: of the nodes.
        other: of the nodes.
        efficiency: as for `adapters`.
    """
    if one.index == other.index:
        return 1.0
    rates = adapters(cluster, efficiency)
    own = min(rates[adapter(node.index)] for node in (one, other))
    return max(1.0, own / cluster.link_between(one, other).rate(efficiency))
