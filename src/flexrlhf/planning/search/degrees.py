"""Every way to split one role over its devices that can be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.placement.arrangement import Arrangement, Degrees
from flexrlhf.planning.placement.plan import RolePlacement

T = TypeVar("T")

_MOST_STAGES: Final = 16
"""Pipeline stages beyond which the bubble eats any gain."""


def role_placements(
    cluster: Cluster,
    arrangement: Arrangement,
    role: Role,
    model: HeldModel,
    *,
    generates: bool,
    on_workers: bool = False,
) -> list[RolePlacement]:
    """Returns the placements of `role` that the arrangement leaves open.

    Tensor parallelism stays inside a node and divides the heads. Pipelines are for training, and
    go with ZeRO-1 at most. A frozen role shards its weights or does not. What the strategy or the
    user fixed is kept.

    Args:
        cluster: the machines.
        arrangement: the role's devices, and the degrees that are fixed.
        role: whose placements.
        model: of the role.
        generates: whether it generates.
        on_workers: whether workers are to run it: a model in pipeline stages then generates with
            copies that have none, and cores are not asked to form pipelines by themselves.
    """
    devices = arrangement.devices[role]
    fixed = arrangement.degrees_of(role)
    ways: list[dict[str, Any]] = [{}]
    if generates:
        ways = _generations(cluster, arrangement, devices, model, fixed)
    found: dict[RolePlacement, None] = {}
    # Cores of a machine share its memory: stages would only wait for each other.
    most_stages = 1 if on_workers and _are_cores(cluster, devices) else _MOST_STAGES
    for tensor, pipeline in _splits(cluster, devices, model, fixed, most_stages=most_stages):
        replicas = len(devices) // (tensor * pipeline)
        if tensor * pipeline * replicas != len(devices):
            continue
        if fixed.get("data_parallel", replicas) != replicas:
            continue
        for sharding in _shardings(cluster, devices, model, (tensor, pipeline), fixed):
            for way in ways:
                generation = way
                if on_workers and way and pipeline > 1:
                    generation = {**way, "generation": "tensor_parallel"}
                choice: dict[str, Any] = {
                    "tensor_parallel": tensor,
                    "pipeline_parallel": pipeline,
                    "data_parallel": replicas,
                    **sharding,
                    **generation,
                }
                found[RolePlacement(devices, **(choice | dict(fixed)))] = None
    return list(found)


def _splits(
    cluster: Cluster,
    devices: Sequence[int],
    model: HeldModel,
    fixed: Degrees,
    *,
    most_stages: int,
) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline degrees."""
    tensors = _tensor_degrees(cluster, devices, model)
    for tensor in _divisors(tensors, fixed, "tensor_parallel", model):
        stages = [1]
        while model.is_trained and 2 * stages[-1] <= min(most_stages, model.shape.layers):
            stages.append(2 * stages[-1])
        for stage in _kept(stages, fixed, "pipeline_parallel"):
            yield tensor, stage


def _are_cores(cluster: Cluster, devices: Sequence[int]) -> bool:
    return all(cluster.device_type(device).name == "cpu-core" for device in devices)


def _kept(values: Sequence[T], fixed: Degrees, key: str) -> Sequence[T]:
    """The values that come into question: the only one that is fixed, else all."""
    return [fixed[key]] if key in fixed else values


def _divisors(values: Sequence[int], fixed: Degrees, key: str, model: HeldModel) -> Sequence[int]:
    """The same for a tensor degree: one that cuts a head in parts does not come into question."""
    return [degree for degree in _kept(values, fixed, key) if model.shape.heads % degree == 0]


def _tensor_degrees(cluster: Cluster, devices: Sequence[int], model: HeldModel) -> list[int]:
    """Powers of two that fit into each node's part of the devices and divide the heads."""
    held = set(devices)
    parts = [len(held.intersection(node.devices)) for node in cluster.nodes_of(devices)]
    degrees = [1]
    while all(part % (2 * degrees[-1]) == 0 for part in parts):
        degrees.append(2 * degrees[-1])
    return [degree for degree in degrees if model.shape.heads % degree == 0]


def _shardings(
    cluster: Cluster,
    devices: Sequence[int],
    model: HeldModel,
    split: tuple[int, int],
    fixed: Degrees,
) -> Iterator[dict[str, Any]]:
    """ZeRO stages, over all replicas or inside a node, with and without offload."""
    tensor, pipeline = split
    replicas = len(devices) // (tensor * pipeline)
    # A core has no host whose memory were another one.
    may_offload = model.is_trained and not _are_cores(cluster, devices)
    stages = [0] if replicas == 1 else [1, 2, 3] if model.is_trained else [0, 3]
    for stage in _kept(stages, fixed, "zero_stage"):
        if pipeline > 1 and stage > 1 and not {"zero_stage", "pipeline_parallel"} <= set(fixed):
            continue
        for offload in _kept([False, True] if may_offload else [False], fixed, "offload"):
            yield {"zero_stage": stage, "offload": offload}
            per_node = len(devices) // len(cluster.nodes_of(devices))
            is_hybrid = stage == 3 and tensor < per_node < len(devices)
            is_even = len(devices) % per_node == 0 and per_node % tensor == 0
            if is_hybrid and is_even and "shard_devices" not in fixed:
                yield {"zero_stage": stage, "offload": offload, "shard_devices": per_node}


def _generations(
    cluster: Cluster,
    arrangement: Arrangement,
    devices: Sequence[int],
    model: HeldModel,
    fixed: Degrees,
) -> list[dict[str, Any]]:
    """How the weights are present while the role generates."""
    mode = arrangement.generation
    if mode == "per_token":
        return [{"generation": "per_token", "generation_tensor_parallel": 1}]
    degrees = _tensor_degrees(cluster, devices, model)
    if mode == "gathered":
        degrees = [1]
    elif mode == "tensor_parallel" and len(degrees) > 1:
        degrees = degrees[1:]
    return [
        {
            "generation": "tensor_parallel" if degree > 1 else "gathered",
            "generation_tensor_parallel": degree,
        }
        for degree in _divisors(degrees, fixed, "generation_tensor_parallel", model)
    ]
