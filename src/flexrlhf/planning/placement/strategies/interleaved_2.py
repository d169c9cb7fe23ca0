"""interleaved_2: the actor inside one node, the other roles on the others.

That the actor stays inside a node is FlexRLHF's; where the others go is not stated in the paper and
our reading.
"""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.independent import independent_models, why_not_interleaved
from flexrlhf.planning.placement.layouts import fastest_node, with_own_places
from flexrlhf.planning.placement.shares import consecutive
from flexrlhf.planning.placement.strategies.interleaved_1 import divisions

_NAME: Final = "interleaved_2"


def interleaved_2(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns the other roles in turn on the other nodes, and frozen models side by side there."""
    if why := why_not_interleaved(spec):
        return Refusal(_NAME, why)
    if len(cluster.nodes) < 2:
        return Refusal(_NAME, "The cluster has one node, so the actor is inside one anyway.")
    home = fastest_node(cluster)
    rest = tuple(device for device in cluster.devices if device not in home.devices)
    own: dict[Role, tuple[int, ...]] = {"actor": home.devices}
    own |= dict.fromkeys(spec.functions, home.devices)
    where = f"The actor stays inside node {home.index}"
    note = f"{where}; the other roles share the other nodes and work there in turn."
    found = [Arrangement(_NAME, with_own_places(spec, rest, own), note)]
    models = independent_models(spec)
    if len(rest) >= len(models):
        counts = divisions(len(models), len(rest))[0]
        parts = dict(zip(models, consecutive(rest, counts), strict=True))
        note = f"{where}; on the other nodes frozen models score next to each other."
        found.append(Arrangement(_NAME, with_own_places(spec, rest, own | parts), note))
    return found
