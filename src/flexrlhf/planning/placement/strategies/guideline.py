"""guideline: the paper's rule of thumb, as a baseline for the planner.

Few devices: interleaved if each frozen model fits one node, else colocated. Ample devices:
disaggregated, with 30 to 50 % of the devices for the shadow actor. Unlike devices: generation on
the slower ones. Source: FlexRLHF, arXiv 2312.11819. What counts as ample is our reading: four
nodes, from which on the paper shows disaggregation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import devices_per_node, has_unlike_devices, speed
from flexrlhf.planning.placement.shares import consecutive
from flexrlhf.planning.placement.strategies.colocated import colocated
from flexrlhf.planning.placement.strategies.disaggregated import pooled
from flexrlhf.planning.placement.strategies.interleaved_1 import interleaved_1

AMPLE_NODES: Final = 4
LEAST_SHARE: Final = 0.3
MOST_SHARE: Final = 0.5
_MIDDLE: Final = (LEAST_SHARE + MOST_SHARE) / 2


def guideline(
    spec: AlgorithmSpec, cluster: Cluster, weight_bytes: Mapping[Role, float]
) -> Arrangement:
    """Returns the one arrangement that the rule chooses.

    Args:
        spec: the algorithm.
        cluster: the machines.
        weight_bytes: of each frozen model; one that is not given is taken to fit.
    """
    if spec.generates and has_unlike_devices(cluster):
        return _on_unlike_devices(spec, cluster)
    if spec.generates and len(cluster.nodes) >= AMPLE_NODES:
        generate = generating_devices(cluster)
        counts = (cluster.num_devices - generate, generate)
        train, rest = consecutive(cluster.devices, counts)
        found = pooled(spec, {"train": train, "generate": rest})
        return _because("the devices are ample", found)
    found = interleaved_1(spec, cluster)
    if isinstance(found, Refusal):
        return _because("nothing can be interleaved", colocated(spec, cluster)[0])
    if not _fits_one_node(cluster, weight_bytes):
        return _because("a frozen model does not fit one node", colocated(spec, cluster)[0])
    return _because("devices are few and each frozen model fits one node", found[0])


def generating_devices(cluster: Cluster) -> int:
    """Returns how many devices the rule gives the shadow actor: 30 to 50 %.

    Whole nodes if some number of them lies in that range, else parts of nodes as large as possible;
    of several numbers the one nearest to 40 %.
    """
    total = cluster.num_devices
    size = devices_per_node(cluster)
    units = [unit for unit in range(size, 0, -1) if size % unit == 0]
    for unit in units:
        counts = [
            count
            for count in range(unit, total, unit)
            if LEAST_SHARE * total <= count <= MOST_SHARE * total
        ]
        if counts:
            return min(counts, key=lambda count: abs(count - _MIDDLE * total))
    return max(1, round(_MIDDLE * total))


def _on_unlike_devices(spec: AlgorithmSpec, cluster: Cluster) -> Arrangement:
    by_speed = {device: speed(cluster.device_type(device)) for device in cluster.devices}
    fastest = max(by_speed.values())
    train = tuple(device for device, value in by_speed.items() if value == fastest)
    generate = tuple(device for device, value in by_speed.items() if value < fastest)
    found = pooled(spec, {"train": train, "generate": generate})
    return _because("devices are unlike, so the slower ones generate", found)


def _fits_one_node(cluster: Cluster, weight_bytes: Mapping[Role, float]) -> bool:
    memory = max(len(node.devices) * node.device.memory_bytes for node in cluster.nodes)
    return all(needed <= memory for needed in weight_bytes.values())


def _because(reason: str, arrangement: Arrangement) -> Arrangement:
    return replace(arrangement, note=f"The paper's guideline: {reason}. {arrangement.note}")
