"""Reads clusters from YAML files and plain mappings; their form is `cluster` of the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from flexrlhf.config.cluster import ClusterDescription, NodeGroup, OwnDevice, PeakTeraFlops
from flexrlhf.config.cluster_text import parse_cluster
from flexrlhf.config.problems import Problem, config_error, mistake
from flexrlhf.config.yaml_text import read_yaml
from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.described_links import link_inside, link_matrix
from flexrlhf.planning.cluster.device_type import DeviceType

MOST_DEVICES: Final = 65_536
"""Sixty times the largest cluster that plans are made for; more is a slip of the pen."""


def load_cluster(path: str | Path) -> Cluster:
    """Returns the cluster that a YAML file describes.

    Raises:
        ConfigError: the file cannot be read, or lists everything that is wrong in it.
    """
    document = read_yaml(Path(path), "cluster")
    if not isinstance(document, dict) or not document:
        raise ConfigError(
            f"{path} {'holds no cluster' if document else 'is empty'}.",
            "A cluster has nodes: {nodes: [{count: 4, devices: 8, type: A100-80G}], links: ...}.",
            "See the files in examples/clusters.",
        )
    return cluster_from(cast("dict[str, Any]", document), str(path))


def cluster_from(document: Mapping[str, Any], source: str = "cluster") -> Cluster:
    """Returns the cluster that a mapping describes.

    Args:
        document: the keys of the section `cluster`.
        source: what to call the document in errors.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    return build_cluster(parse_cluster(document, source), source)


def build_cluster(description: ClusterDescription, source: str) -> Cluster:
    """Returns the cluster of a description whose keys and ranges are right.

    Raises:
        ConfigError: lists names that mean nothing, and links that are missing.
    """
    problems = [*_size_problems(description), *_name_problems(description)]
    own = {name: _own_type(name, device) for name, device in description.devices.items()}
    types = {**own, **DEVICE_TYPES}
    nodes: list[Node] = []
    for position, group in enumerate(description.nodes):
        key = f"nodes.{position}"
        if group.type not in types:
            right = nearest(group.type, types) or f"Known: {', '.join(types)}."
            problems.append(mistake(f"{key}.type", group.type, "no known device.", right))
        else:
            nodes += _nodes(key, group, types[group.type], nodes, problems)
    counts = {_pool(group): group.count for group in description.nodes}
    between = link_matrix(description, counts, problems)
    if problems:
        raise config_error(source, problems)
    return Cluster(tuple(nodes), between)


def _nodes(
    key: str, group: NodeGroup, kind: DeviceType, before: list[Node], problems: list[Problem]
) -> list[Node]:
    link = link_inside(f"{key}.link", group.link, kind, problems)
    if group.price_per_hour is not None:
        kind = replace(kind, price_per_hour=group.price_per_hour)
    first_device = before[-1].devices[-1] + 1 if before else 0
    starts = range(first_device, first_device + group.count * group.devices, group.devices)
    return [
        Node(index, kind, tuple(range(start, start + group.devices)), link, _pool(group))
        for index, start in enumerate(starts, start=len(before))
    ]


def _pool(group: NodeGroup) -> str:
    return group.pool or group.type


def _own_type(name: str, device: OwnDevice) -> DeviceType:
    return DeviceType(
        name=name,
        memory_bytes=round(device.memory_gib * 2**30),
        memory_bandwidth=device.memory_bandwidth_gbytes_s * 1e9,
        flops=_flops(device.tflops),
        host_bandwidth=device.host_bandwidth_gbytes_s * 1e9,
        price_per_hour=device.price_per_hour,
        source="the cluster's description",
    )


def _flops(peaks: PeakTeraFlops) -> dict[str, float]:
    given: dict[str, float] = peaks.model_dump(exclude_none=True)
    return {dtype: peak * 1e12 for dtype, peak in given.items()}


def _size_problems(description: ClusterDescription) -> Iterator[Problem]:
    num_devices = sum(group.count * group.devices for group in description.nodes)
    if num_devices > MOST_DEVICES:
        yield mistake(
            "nodes",
            num_devices,
            "so many devices are described in all.",
            f"Right: at most {MOST_DEVICES}.",
        )


def _name_problems(description: ClusterDescription) -> Iterator[Problem]:
    for name in description.devices:
        if name in DEVICE_TYPES:
            right = "Right: a name of its own."
            yield mistake("devices", name, "a device of the catalogue has this name.", right)
    seen: set[str] = set()
    for position, group in enumerate(description.nodes):
        if _pool(group) in seen:
            yield mistake(
                f"nodes.{position}.pool",
                _pool(group),
                "an earlier group has this name.",
                "Right: a name of its own; a group without one is called as its devices.",
            )
        seen.add(_pool(group))
