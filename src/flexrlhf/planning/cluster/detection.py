"""The cluster that this machine is, found without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.machine import memory, physical_cores
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES, device_type, usual_link
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type

POOL: Final = "local"
_DEADLINE_S: Final = 20.0
_QUERY: Final = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_MIB: Final = 2**20
_KEPT_BY_DRIVER: Final = 600 * _MIB
"""What nvidia-smi counts and a program does not get: 0.6 GiB of an H200 and of an L40S."""
_NAMES: Final[Sequence[tuple[str, str]]] = (
    (r"V100-\w+-32GB", "V100-32G"),
    (r"A100-\w+-40GB", "A100-40G"),
    (r"A100-\w+-64GB", "A100-64G"),
    (r"A100[- ](\w+-80GB|80GB PCIe)", "A100-80G"),
    (r"A800[- ](\w+-80GB|80GB PCIe)", "A800-80G"),
    (r"L40S", "L40S-48G"),
    (r"RTX A6000", "A6000-48G"),
    (r"H100 80GB HBM3", "H100-80G"),
    (r"H800", "H800-80G"),
    (r"H20", "H20-96G"),
    (r"H200", "H200-141G"),
    (r"GH200 480GB", "GH200"),
    (r"GB200", "GB200"),
    (r"B200", "B200"),
    (r"A10", "A10"),
    (r"GeForce RTX 4090", "RTX-4090"),
)
"""What nvidia-smi calls devices of the catalogue, after `NVIDIA` or `Tesla`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi shows it."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


def this_machine(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Cluster:
    """Returns this machine as a cluster: its NVIDIA GPUs, else its cores.

    Memory is what this process may use. A GPU that the catalogue does not have keeps its own name
    and memory and takes the speeds of the known one whose memory is nearest; its source says so.
    GPUs of two types make two nodes.

    Args:
        root: where `proc` and `sys` are mounted.
        environment: its CUDA_VISIBLE_DEVICES hides GPUs.

    Raises:
        ConfigError: nvidia-smi does not answer.
    """
    gpus = _visible(_installed_gpus(), environment.get("CUDA_VISIBLE_DEVICES"))
    return _cluster_of_gpus(gpus) if gpus else _cluster_of_cores(root)


def gpu_type(gpu: Gpu) -> DeviceType:
    """Returns what kind a GPU is."""
    name = re.sub(r"^(NVIDIA|Tesla) ", "", gpu.name.strip())
    for pattern, known in _NAMES:
        if re.fullmatch(pattern, name):
            kind = device_type(known)
            return replace(kind, memory_bytes=min(kind.memory_bytes, gpu.memory_bytes))
    likeness = min(
        (kind for kind in DEVICE_TYPES.values() if kind.name != "cpu-core"),
        key=lambda kind: abs(kind.memory_bytes - gpu.memory_bytes),
    )
    return replace(
        likeness,
        name=name,
        memory_bytes=gpu.memory_bytes - _KEPT_BY_DRIVER,
        price_per_hour=None,
        source=f"found here, not in the catalogue; the speeds are those of {likeness.name}",
    )


def parse_gpus(text: str) -> list[Gpu]:
    """Returns the GPUs in the output of nvidia-smi, one a line: index, uuid, name, MiB."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[0].isdecimal() and fields[3].isdecimal():
            gpus.append(Gpu(int(fields[0]), fields[1], fields[2], int(fields[3]) * _MIB))
    return gpus


def all_joined_by_nvlink(topology: str) -> bool:
    """Says whether `nvidia-smi topo -m` shows NVLink between each two GPUs."""
    rows = [line.split() for line in topology.splitlines() if re.match(r"GPU\d+\s", line)]
    cells = [cell for row in rows for cell in row[1 : len(rows) + 1] if cell != "X"]
    return bool(cells) and all(re.fullmatch(r"NV\d+", cell) for cell in cells)


def _installed_gpus() -> list[Gpu]:
    return parse_gpus(_ask(*_QUERY))


def _visible(gpus: list[Gpu], variable: str | None) -> list[Gpu]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; it ends at a wrong entry."""
    if variable is None:
        return gpus
    seen: list[Gpu] = []
    for entry in (part.strip() for part in variable.split(",")):
        named = [gpu for gpu in gpus if entry and _is_called(gpu, entry)]
        if len(named) != 1:
            break
        seen.extend(named)
    return seen


def _is_called(gpu: Gpu, entry: str) -> bool:
    return gpu.index == int(entry) if entry.isdecimal() else gpu.uuid.startswith(entry)


def _cluster_of_gpus(gpus: list[Gpu]) -> Cluster:
    devices: dict[DeviceType, list[int]] = {}
    for number, gpu in enumerate(gpus):
        devices.setdefault(gpu_type(gpu), []).append(number)
    is_fast = len(gpus) == 1 or all_joined_by_nvlink(_ask("topo", "-m"))
    several = len(devices) > 1
    nodes = tuple(
        Node(
            index=index,
            device=kind,
            devices=tuple(numbers),
            link=usual_link(kind) if is_fast else _over_pcie(kind),
            pool=kind.name if several else POOL,
        )
        for index, (kind, numbers) in enumerate(devices.items())
    )
    slowest = min((_over_pcie(kind) for kind in devices), key=lambda link: link.bandwidth)
    pools = [node.pool for node in nodes]
    return Cluster(nodes, {frozenset({a, b}): slowest for a in pools for b in pools if a != b})


def _cluster_of_cores(root: Path) -> Cluster:
    cores, state = physical_cores(root), memory(root)
    core = device_type("cpu-core")
    if state is not None:
        core = replace(core, memory_bytes=state.total_bytes // cores)
    node = Node(0, core, tuple(range(cores)), usual_link(core), POOL)
    return Cluster((node,), {})


def _over_pcie(kind: DeviceType) -> Link:
    """Returns the PCI Express that a device has."""
    generations = [link_type(name) for name in ("PCIe3", "PCIe4", "PCIe5")]
    fitting = [link for link in generations if link.bandwidth <= kind.host_bandwidth]
    return fitting[-1] if fitting else generations[0]


def _ask(*arguments: str) -> str:
    """Returns what nvidia-smi prints, nothing where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"nvidia-smi did not answer within {_DEADLINE_S:g} s.",
            "It lists the GPUs of this machine in a second or two.",
            "Mend the driver, or describe the machine in a cluster file.",
        ) from None
    return answer.stdout if answer.returncode == 0 else ""
