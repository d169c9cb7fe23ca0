"""Finding this machine: an nvidia-smi made of a shell script, and made-up kernel files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster import detection
from flexrlhf.planning.cluster.catalogue import device_type
from flexrlhf.planning.cluster.detection import Gpu, gpu_type, parse_gpus, this_machine

GIB = 2**30
MIB = 2**20
SmiScript = Callable[..., None]

NVLINK_TOPOLOGY = """
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNV12\tPXB\t0-31
GPU1\tNV12\t X \tSYS\t0-31
NIC0\tPXB\tSYS\t X \t

Legend:

  X    = Self
"""
HOST_TOPOLOGY = NVLINK_TOPOLOGY.replace("NV12", "PHB")


@pytest.fixture
def smi(tmp_path: Path, monkeypatch) -> SmiScript:
    """Puts an nvidia-smi into the path that prints given text; no GPU is hidden."""

    def write(listing: str, topology: str = "", *, status: int = 0, sleep_s: int = 0) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "listing").write_text(listing)
        (folder / "topology").write_text(topology)
        script = folder / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\nsleep {sleep_s}\n"
            f'if [ "$1" = topo ]; then cat {folder}/topology; else cat {folder}/listing; fi\n'
            f"exit {status}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return write


def listing(*gpus: tuple[str, int]) -> str:
    rows = (f"{i}, GPU-{i}abc-def, {name}, {mib}" for i, (name, mib) in enumerate(gpus))
    return "\n".join(rows) + "\n"


@pytest.fixture
def two_cores(tmp_path: Path, monkeypatch) -> Path:
    """A machine with two cores and 8 GiB, of which a container gives 6, without nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    root = tmp_path / "root"
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(str(6 * GIB))
    return root


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="reads Linux kernel files")
def test_without_gpus_the_cores_are_the_devices(two_cores):
    cluster = this_machine(two_cores, {})
    (node,) = cluster.nodes
    assert cluster.devices == (0, 1)
    assert node.device.name == "cpu-core"
    assert node.device.memory_bytes == 3 * GIB
    assert node.link.name == "shared-memory"


def test_this_very_machine_is_found():
    cluster = this_machine()
    assert cluster.num_devices >= 1
    assert all(node.device.memory_bytes > 0 for node in cluster.nodes)


def test_gpus_with_nvlink(smi):
    smi(listing(*[("NVIDIA A100-SXM4-80GB", 81920)] * 2), NVLINK_TOPOLOGY)
    cluster = this_machine(environment={})
    (node,) = cluster.nodes
    assert node.device == device_type("A100-80G")
    assert (node.devices, node.link.name, node.pool) == ((0, 1), "NVLink3", "local")


def test_gpus_without_nvlink(smi):
    smi(listing(*[("NVIDIA A100 80GB PCIe", 81920)] * 2), HOST_TOPOLOGY)
    (node,) = this_machine(environment={}).nodes
    assert node.link.name == "PCIe4"


def test_unlike_gpus_are_nodes_of_their_own(smi):
    smi(
        listing(("NVIDIA GeForce RTX 4090", 24564), ("Tesla V100-SXM2-32GB", 32510)),
        HOST_TOPOLOGY,
    )
    cluster = this_machine(environment={})
    assert str(cluster) == "1 x 1 RTX-4090 (RTX-4090), 1 x 1 V100-32G (V100-32G)"
    assert cluster.link_between(*cluster.nodes).name == "PCIe3"


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("1", ["L40S-48G"]),
        ("1,0", ["L40S-48G", "A10"]),
        ("GPU-0abc", ["A10"]),
        ("0,7,1", ["A10"]),
    ],
)
def test_hidden_gpus_do_not_count(smi, variable, names):
    smi(listing(("NVIDIA A10", 23028), ("NVIDIA L40S", 46068)), HOST_TOPOLOGY)
    cluster = this_machine(environment={"CUDA_VISIBLE_DEVICES": variable})
    assert [node.device.name for node in cluster.nodes] == names


@pytest.mark.parametrize("variable", ["", "-1", "NoDevFiles"])
def test_where_all_gpus_are_hidden_the_cores_compute(smi, variable):
    smi(listing(("NVIDIA A10", 23028)))
    cluster = this_machine(environment={"CUDA_VISIBLE_DEVICES": variable})
    assert cluster.nodes[0].device.name == "cpu-core"


def test_a_driver_that_fails_means_no_gpus(smi):
    smi("NVIDIA-SMI has failed because it could not talk to the driver.\n", status=9)
    assert this_machine(environment={}).nodes[0].device.name == "cpu-core"


def test_a_driver_that_does_not_answer_is_said(smi, monkeypatch):
    smi("", sleep_s=5)
    monkeypatch.setattr(detection, "_DEADLINE_S", 0.2)
    with pytest.raises(ConfigError) as caught:
        this_machine(environment={})
    assert caught.value.wrong == "nvidia-smi did not answer within 0.2 s."
    assert "cluster file" in caught.value.do


@pytest.mark.parametrize(
    ("name", "mib", "known"),
    [  # names and MiB as users of these GPUs have posted them
        ("Tesla V100-SXM2-32GB", 32510, "V100-32G"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40G"),
        ("NVIDIA A100-SXM-64GB", 65536, "A100-64G"),
        ("NVIDIA A800-SXM4-80GB", 81920, "A800-80G"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80G"),
        ("NVIDIA H20", 97871, "H20-96G"),
        ("NVIDIA GH200 480GB", 97871, "GH200"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA L40S", 46068, "L40S-48G"),
        ("NVIDIA RTX A6000", 49140, "A6000-48G"),
        ("NVIDIA H200", 143771, "H200-141G"),
    ],
)
def test_names_of_the_driver(name, mib, known):
    assert gpu_type(Gpu(0, "GPU-0", name, mib * MIB)) == device_type(known)


def test_less_memory_than_the_catalogue_knows_is_believed():
    kind = gpu_type(Gpu(0, "GPU-0", "NVIDIA A10", 12 * GIB))
    assert (kind.name, kind.memory_bytes) == ("A10", 12 * GIB)


@pytest.mark.parametrize(
    ("name", "mib", "like"),
    [("Tesla T4", 15360, "A10"), ("NVIDIA A10G", 23028, "A10"), ("NVIDIA A40", 46068, "L40S-48G")],
)
def test_an_unknown_gpu_keeps_its_name_and_memory(name, mib, like):
    kind = gpu_type(Gpu(0, "GPU-0", name, mib * MIB))
    assert kind.name == name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    assert kind.memory_bytes == (mib - 600) * MIB
    assert kind.flops == device_type(like).flops
    assert kind.source.endswith(f"the speeds are those of {like}")
    assert kind.price_per_hour is None


def test_lines_that_are_no_gpus_are_skipped():
    text = "0, GPU-1, NVIDIA GB10, [N/A]\nfailed\n\n1, GPU-2, NVIDIA A10, 23028\n"
    assert parse_gpus(text) == [Gpu(1, "GPU-2", "NVIDIA A10", 23028 * MIB)]
