"""Ray itself: a cluster of our own on this machine, or one that is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.machine import logical_cpus
from flexrlhf.core.plugins import require_package

_OBJECT_STORE_BYTES: Final = 100_000_000
"""Ray's store carries only task names and small numbers."""
_QUIET: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "false",
}


@dataclass(frozen=True, slots=True)
class RayNode:
    """One machine of a Ray cluster."""

    node_id: str
    address: str
    cpus: float
    gpus: float
    """Free now, as are the CPUs."""
    memory_bytes: float = 0.0
    """Of the machine, as Ray counts it."""


def start_local(num_workers: int) -> None:
    """Starts a cluster on this machine alone that has room for so many workers.

    Raises:
        EngineMissing: Ray is not installed.
    """
    ray = _ray()
    if ray.is_initialized():
        return
    ray.init(
        num_cpus=max(num_workers, logical_cpus()),
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        **_SETTINGS,
    )


def join(address: str) -> None:
    """Joins a cluster.

    Args:
        address: `auto` for the one that this machine belongs to, or `HOST:PORT`.

    Raises:
        EngineMissing: Ray is not installed.
        ConfigError: there is no such cluster.
    """
    ray = _ray()
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, **_SETTINGS)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cluster.ray = {address!r}: no Ray cluster answers ({error}).",
            "It is `auto` on a machine of the cluster, or the HOST:PORT that `ray start` printed.",
            "Start one with `ray start --head`, or leave `cluster` out to train on this machine.",
        ) from error


def leave() -> None:
    """Leaves the cluster; one of our own ends with all its processes."""
    ray = _ray()
    if ray.is_initialized():
        ray.shutdown()


def nodes() -> Sequence[RayNode]:
    """Returns the machines that are alive, in an order that stays."""
    ray = _ray()
    free: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()
    found = [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            free.get(node["NodeID"], {}).get("CPU", 0.0),
            free.get(node["NodeID"], {}).get("GPU", 0.0),
            node["Resources"].get("memory", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.node_id))


_SETTINGS: Final[Mapping[str, Any]] = {
    "include_dashboard": False,
    "log_to_driver": False,
    "configure_logging": False,
    "logging_level": logging.WARNING,
}


def _ray() -> Any:
    require_package("ray", needed_by="Training on several devices")
    os.environ.update(_QUIET)
    import ray

    return ray
