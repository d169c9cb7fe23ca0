"""zero3_generation: all on all devices, and ZeRO-3 gathers the actor's weights for every token.

DeepSpeed-Chat does so without its hybrid engine.
"""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import everywhere

_NAME: Final = "zero3_generation"
_WHOLE_CLUSTER: Final = {
    "zero_stage": 3,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "shard_devices": None,
}
"""What makes it the weak baseline: nothing is split or sharded so that gathers get shorter."""


def zero3_generation(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns the colocated layout whose generation crosses all links for each token."""
    if not spec.generates:
        return Refusal(_NAME, f"{spec.name} generates nothing that weights could be gathered for.")
    if cluster.num_devices < 2:
        return Refusal(_NAME, "One device has nothing to gather from.")
    note = "All roles are on all devices; ZeRO-3 gathers the actor's weights for every token."
    return [
        Arrangement(
            _NAME,
            everywhere(spec, cluster.devices),
            note,
            generation="per_token",
            fixed={"actor": _WHOLE_CLUSTER},
        )
    ]
