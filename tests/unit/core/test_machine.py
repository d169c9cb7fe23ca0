"""Cores and memory, read from made-up kernel files."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from flexrlhf.core import machine
from flexrlhf.core.errors import EngineMissing

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux kernel files")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def four_cpus_two_cores(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, topology, siblings + "\n")
    return tmp_path


@linux
def test_two_threads_of_a_core_are_one(four_cpus_two_cores):
    assert machine.logical_cpus() == 4
    assert machine.physical_cores(four_cpus_two_cores) == 2


@linux
def test_only_cores_that_the_process_may_use_count(four_cpus_two_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    assert machine.physical_cores(four_cpus_two_cores) == 1


@linux
@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("", 2)]
)
def test_a_containers_quota_limits_the_cores(four_cpus_two_cores, quota, cores):
    write(four_cpus_two_cores, "sys/fs/cgroup/cpu.max", quota)
    assert machine.physical_cores(four_cpus_two_cores) == cores


@linux
@pytest.mark.parametrize(("quota", "cores"), [("-1", 2), ("100000", 1)])
def test_quotas_of_the_older_kind(four_cpus_two_cores, quota, cores):
    write(four_cpus_two_cores, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
    write(four_cpus_two_cores, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert machine.physical_cores(four_cpus_two_cores) == cores


def test_cpus_without_topology_count_as_cores(tmp_path: Path):
    assert machine.physical_cores(tmp_path) == machine.logical_cpus()


MEMINFO = "MemTotal:        8192 kB\nMemFree:    1 kB\nMemAvailable:    4096 kB\n"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, machine.Memory(8192 * 1024, 4096 * 1024)),
        ("max", machine.Memory(8192 * 1024, 4096 * 1024)),
        ("1048576", machine.Memory(1048576, 1048576)),
    ],
)
def test_memory_is_the_kernels_within_the_containers_limit(tmp_path: Path, limit, expected):
    write(tmp_path, "proc/meminfo", MEMINFO)
    if limit is not None:
        write(tmp_path, "sys/fs/cgroup/memory.max", limit + "\n")
    assert machine.memory(tmp_path) == expected


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "row"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_what_a_container_uses_is_not_free_but_for_its_old_files(
    tmp_path: Path, folder, limit, usage, row
):
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, f"{folder}/{limit}", "1000000\n")
    write(tmp_path, f"{folder}/{usage}", "700000\n")
    write(tmp_path, f"{folder}/memory.stat", f"anon 600000\n{row} 50000\n")
    assert machine.memory(tmp_path) == machine.Memory(1000000, 350000)
    write(tmp_path, f"{folder}/{usage}", "1200000\n")
    assert machine.memory(tmp_path) == machine.Memory(1000000, 0)


def test_memory_agrees_with_psutil():
    psutil = pytest.importorskip("psutil")
    assert machine.memory().total_bytes <= psutil.virtual_memory().total


def test_memory_is_unknown_without_kernel_files_and_psutil(tmp_path: Path, monkeypatch):
    def refuse(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert machine.memory(tmp_path) is None
    monkeypatch.setattr(machine, "memory", lambda: None)
    with pytest.raises(EngineMissing, match="pip install psutil"):
        machine.available_bytes()
