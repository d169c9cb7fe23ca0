"""What one more node would give the strategy that won."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Found, Search


def with_another_node(cluster: Cluster, pool: str) -> Cluster | None:
    """Returns the cluster with a node more in a pool; None if no link joins the pool's nodes.

    The node is like the last one of the pool, and its devices get the next free numbers.
    """
    if frozenset({pool}) not in cluster.between:
        return None
    model = cluster.pools[pool][-1]
    first = max(cluster.devices) + 1
    node = replace(
        model,
        index=max(node.index for node in cluster.nodes) + 1,
        devices=tuple(range(first, first + len(model.devices))),
    )
    return Cluster((*cluster.nodes, node), cluster.between)


def gains_of_another_node(
    request: PlanRequest, choices: Choices, winner: Found
) -> Mapping[str, float]:
    """Returns by what factor iterations of the same batch would be faster, per pool of nodes.

    The winner's strategy is searched anew on the larger cluster. Nothing is said where the user
    lists devices, since a list has no use for a node more, and of pools that could not grow.

    Args:
        request: what is placed.
        choices: of the user.
        winner: the best plan.
    """
    predicted = winner.best.plan.predicted
    assert predicted is not None, "what won was simulated"
    gains: dict[str, float] = {}
    for pool in () if choices.devices else request.cluster.pools:
        if larger := with_another_node(request.cluster, pool):
            found = arrangements(winner.strategy, request.spec, larger, choices)
            if isinstance(found, Refusal):
                continue
            search = Search(replace(request, cluster=larger))
            # A node that does not help can be left unused: only what is better is looked for.
            best = search.best_of(found, limit=search.score(winner.best))
            if best is not None and best.best.plan.predicted is not None:
                gains[pool] = max(1.0, predicted.iteration_s / best.best.plan.predicted.iteration_s)
            elif search.summary["candidates"]:
                gains[pool] = 1.0
    return gains
