"""The cluster that a config asks for."""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.config.cluster import ClusterDescription, RayCluster, WorkersHere
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import POOL, this_machine
from flexrlhf.planning.cluster.file_form import build_cluster, load_cluster


def requested_cluster(setting: str | ClusterDescription | RayCluster | WorkersHere) -> Cluster:
    """Returns the cluster that the value of `cluster` means.

    Args:
        setting: `auto` for this machine, the path of a file, or a section.

    Raises:
        ConfigError: the file cannot be read, the description is wrong, or nobody has asked Ray
            yet.
    """
    if isinstance(setting, ClusterDescription):
        return build_cluster(setting, "cluster")
    if isinstance(setting, WorkersHere):
        return workers_here(this_machine(), setting)
    if isinstance(setting, RayCluster):
        raise ConfigError(
            f"cluster.ray = {setting.ray!r} is known only when Ray was asked.",
            "Plans for it are made by `flexrlhf plan` and `flexrlhf train`.",
            "Use one of them.",
        )
    return this_machine() if setting == "auto" else load_cluster(setting)


def workers_here(machine: Cluster, setting: WorkersHere) -> Cluster:
    """Returns a machine as so many workers, in equal groups that count as nodes.

    Cores may be shared by several workers; GPUs may not. Memory is divided between the workers of
    cores.

    Raises:
        ConfigError: there are too few GPUs, or the groups would not be equal.
    """
    count, groups = setting.workers, setting.groups
    if count % groups:
        raise ConfigError(
            f"cluster.workers = {count} in cluster.groups = {groups} groups.",
            "The groups are equal.",
            "Change one of the two numbers.",
        )
    first = machine.nodes[0]
    kind = first.device
    if kind.name == "cpu-core":
        total = kind.memory_bytes * machine.num_devices
        kind = replace(kind, memory_bytes=total // count)
    elif count > len(first.devices):
        raise ConfigError(
            f"cluster.workers = {count}, but this machine has {len(first.devices)} GPUs of one "
            "type.",
            "A worker has a GPU of its own.",
            f"Set cluster.workers to at most {len(first.devices)}.",
        )
    size = count // groups
    nodes = tuple(
        Node(group, kind, tuple(range(group * size, (group + 1) * size)), first.link, POOL)
        for group in range(groups)
    )
    return Cluster(nodes, {frozenset({POOL}): first.link})
