"""Generation with weights that are resharded by tensor parallelism inside nodes."""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import tensor_sizes


def split_generation(base: Arrangement, cluster: Cluster) -> list[Arrangement]:
    """Returns `base` with generation split over each number of devices that divides the nodes."""
    role = base.generating_role
    return [
        replace(
            base,
            note=f"{base.note} Generation is split over {size} devices of a node.",
            generation="tensor_parallel",
            fixed={
                **base.fixed,
                role: {**base.fixed.get(role, {}), "generation_tensor_parallel": size},
            },
        )
        for size in tensor_sizes(cluster)
    ]
