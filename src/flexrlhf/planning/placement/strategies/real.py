"""real: each kind of work on its own mesh, with parameters moved between meshes.

Source: ReaL, arXiv 2406.14088, whose search gives every call (generation, scoring, training) a mesh
and a layout. Here a role scores where it trains, and generation alone may have another mesh.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import everywhere, with_own_places
from flexrlhf.planning.placement.shares import consecutive
from flexrlhf.planning.placement.split_generation import split_generation

_NAME: Final = "real"


def real(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns all calls on all devices, and actor and critic side by side on halves."""
    note = "As in ReaL: all calls on all devices."
    base = Arrangement(_NAME, everywhere(spec, cluster.devices), note)
    if not spec.generates:
        return [base]
    found = [replace(base, generation="gathered"), *split_generation(base, cluster)]
    total = cluster.num_devices
    if "critic" not in spec.trained or total < 2:
        return found
    first, second = consecutive(cluster.devices, (total - total // 2, total // 2))
    own: dict[Role, tuple[int, ...]] = {"actor": first, "shadow_actor": cluster.devices}
    if "reference" in spec.frozen:
        own["reference"] = first
    note = "As in ReaL: actor and critic train side by side on halves, generation is on all."
    return [*found, Arrangement(_NAME, with_own_places(spec, second, own), note)]
