"""The machines of a case."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.errors import nearest
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import MOST_DEVICES, Case
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES, usual_link
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type

_USUAL_DEVICE: Final = {2023: "A100-80G", 2024: "H100-80G", 2025: "H100-80G"}
_USUAL_NETWORK: Final = {
    "V100-32G": "InfiniBand-4x100G",
    "A100-40G": "InfiniBand-8x200G",
    "A100-64G": "InfiniBand-4x100G",
    "A100-80G": "InfiniBand-8x200G",
    "A800-80G": "InfiniBand-4x200G",
    "GB200": "InfiniBand-4x400G",
}
"""Between nodes, as vendors and clouds sell them; newer devices have eight of 400 Gbit/s."""
_NEWER_NETWORK: Final = "InfiniBand-8x400G"
_SLOW_NETWORK: Final = "Ethernet-100G"
_MIXED: Final = re.compile(r"(?:(\d+)x)?(.+)")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A cluster, and which of its devices do what where roles are apart."""

    cluster: Cluster
    is_stated: bool
    """Whether the devices are named."""


def hardware_of(case: Case, system: System, taken: Assumptions) -> Hardware:
    """Returns the machines that a case runs on.

    Unlike devices are joined by 100 Gbit/s; the faster ones come first.
    """
    stated = case.word("gpu")
    if stated is not None and stated.startswith("mixed:"):
        return Hardware(_mixed(case, stated.removeprefix("mixed:"), taken), is_stated=True)
    name = _device_name(stated, system, taken)
    num_devices = _num_devices(case, taken)
    per_node = _per_node(case, name, num_devices, taken)
    cluster = Cluster.uniform(
        name,
        nodes=-(-num_devices // per_node),
        devices_per_node=per_node,
        between=_network(case, name, taken),
    )
    if cluster.num_devices != num_devices:
        cluster = cluster.subset(range(num_devices))
    return Hardware(cluster, is_stated=stated is not None)


def _device_name(stated: str | None, system: System, taken: Assumptions) -> str:
    usual = _USUAL_DEVICE[system.year]
    if stated is None:
        return taken.take("gpu", usual, f"usual in {system.year}")
    if stated not in DEVICE_TYPES:
        hint = nearest(stated, DEVICE_TYPES)
        return taken.take("gpu", usual, f"{stated} is not in the catalogue. {hint}".rstrip())
    return stated


def _num_devices(case: Case, taken: Assumptions) -> int:
    if (stated := case.number("n_gpus")) is not None:
        return int(stated)
    parts = [case.number(f"n_gpus_{part}") or 0 for part in ("generate", "train", "other")]
    if sum(parts):
        return taken.take("n_gpus", int(sum(parts)), "sum of its parts")
    degrees = case.count("tp_train") * case.count("pp_train") * case.count("dp_train")
    asked = min(MOST_DEVICES, max(8, degrees))
    return taken.take("n_gpus", asked, "a node, or as many as the degrees ask for")


def _per_node(case: Case, device: str, num_devices: int, taken: Assumptions) -> int:
    if (stated := case.number("gpus_per_node")) is not None:
        return min(int(stated), num_devices)
    usual = {"GB200": 4, "A100-64G": 4}.get(device, 8)
    if num_devices <= usual:
        return num_devices
    return taken.take("gpus_per_node", usual, "usual")


def _network(case: Case, device: str, taken: Assumptions) -> str | Link:
    stated = case.word("interconnect") or ""
    if "NVL" in stated.upper():
        return usual_link(DEVICE_TYPES[device])  # one domain: nodes are joined as their devices are
    usual = _USUAL_NETWORK.get(device, _NEWER_NETWORK)
    if "ethernet" in stated.lower():
        return _SLOW_NETWORK
    if "roce" in stated.lower():
        usual = usual.replace("InfiniBand", "RoCE")
    return taken.take("network", usual, "usual with these devices")


def _mixed(case: Case, text: str, taken: Assumptions) -> Cluster:
    per_node = case.count("gpus_per_node", 8)
    pools: list[tuple[str, int]] = []
    parts = text.split("+")
    for part in parts:
        found = _MIXED.fullmatch(part.strip())
        count, name = (found[1], found[2]) if found else (None, part)
        if name not in DEVICE_TYPES:
            name = taken.take("gpu", "A100-80G", f"{name or 'nothing'} is not in the catalogue")
        share = case.count("n_gpus", 8 * len(parts)) // len(parts)
        if count is None:
            count = str(taken.take(f"number of {name}", max(1, share), "equal parts"))
        pools.append((name, min(MOST_DEVICES, max(1, int(count)))))
    pools.sort(key=lambda pool: -DEVICE_TYPES[pool[0]].peak_flops("float16"))
    between = taken.take("network", _SLOW_NETWORK, "between unlike devices")
    return _joined(pools, per_node, link_type(between))


def _joined(pools: list[tuple[str, int]], per_node: int, between: Link) -> Cluster:
    nodes: list[Node] = []
    first = 0
    for index, (name, count) in enumerate(pools):
        kind = DEVICE_TYPES[name]
        for start in range(0, count, per_node):
            devices = range(first + start, first + min(start + per_node, count))
            nodes.append(Node(len(nodes), kind, tuple(devices), usual_link(kind), f"pool{index}"))
        first += count
    names = [f"pool{index}" for index in range(len(pools))]
    inside = {
        frozenset({f"pool{index}"}): link_type(_USUAL_NETWORK.get(name, _NEWER_NETWORK))
        for index, (name, _) in enumerate(pools)
    }
    across = {frozenset({a, b}): between for a in names for b in names if a != b}
    return Cluster(tuple(nodes), inside | across)
