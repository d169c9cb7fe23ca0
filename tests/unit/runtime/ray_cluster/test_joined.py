"""The machines of a Ray cluster as the planner sees them."""

from __future__ import annotations

import pytest

from flexrlhf.config.cluster import OwnLink, RayCluster
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.described_links import link_between
from flexrlhf.runtime.profiling.measure import measure
from flexrlhf.runtime.ray_cluster.joined import as_known, cluster_of_nodes, joined_cluster
from flexrlhf.runtime.ray_cluster.session import RayNode

CORES = Cluster.uniform("cpu-core", nodes=1, devices_per_node=2)
NOBODY = "127.0.0.1:1"
H100 = Cluster.uniform("H100-80G", nodes=1, devices_per_node=8)


def machine(
    name: str, cpus: float, gpus: float = 0, accelerator: str | None = None, memory: float = 0
) -> RayNode:
    return RayNode(name, name, cpus, gpus, memory, accelerator)


def cluster(*found: RayNode, workers: int | None = None, here: Cluster = CORES) -> Cluster:
    return cluster_of_nodes(found, RayCluster(ray="auto", workers=workers), here)


def test_every_free_core_of_every_machine_the_largest_first():
    found = cluster(machine("a", 1.5, memory=8), machine("b", 2, memory=8), machine("c", 0))
    assert [node.devices for node in found.nodes] == [(0, 1), (2,)]
    assert [node.device.memory_bytes for node in found.nodes] == [4, 8]


def test_no_more_workers_than_asked_for():
    found = cluster(machine("a", 4), machine("b", 4), workers=5)
    assert [len(node.devices) for node in found.nodes] == [4, 1]


def test_a_gpu_counts_where_a_core_is_free_for_it_too():
    found = cluster(machine("head", 64), machine("a", 3, 8, "H100"), here=H100)
    assert [len(node.devices) for node in found.nodes] == [3]


def test_gpus_that_the_starting_machine_does_not_have_are_told_by_ray():
    found = cluster(machine("a", 8, 8, "V100"), machine("b", 8, 8, "A100"), here=CORES)
    assert [node.device.name for node in found.nodes] == ["V100-32G", "A100-40G"]
    assert found.link_between(*found.nodes).name == "Ethernet-10G"
    with pytest.raises(ConfigError, match="unknown to Ray"):
        cluster(machine("a", 8, 8), here=CORES)


def test_gpus_that_ray_does_not_name_are_like_those_here():
    assert cluster(machine("a", 8, 8), here=H100).nodes[0].device.name == "H100-80G"


def test_too_few_are_refused_machine_by_machine():
    with pytest.raises(ConfigError) as refused:
        cluster(machine("a", 1), machine("b", 2), workers=4)
    assert "workers = 4" in refused.value.wrong
    assert "1 CPUs on a; 2 CPUs on b" in refused.value.wrong
    with pytest.raises(ConfigError, match="no machine"):
        cluster()


def test_the_link_that_the_user_names_joins_all_machines():
    found = cluster(machine("a", 2), machine("b", 2))
    own = OwnLink(bandwidth_gbytes_s=0.5, latency_us=100)
    link = link_between("cluster.links", own)
    known = as_known(found, RayCluster(ray="auto", links=own), None, link)
    assert known.link_between(*known.nodes) == link
    assert (link.bandwidth, link.latency_s) == (0.5e9, pytest.approx(1e-4))
    assert as_known(found, RayCluster(ray="auto"), None, None) == found


@pytest.mark.parametrize("name", ["NVLink4", "Etherned-10G"])
def test_what_joins_no_machines_is_refused_before_a_cluster_is_asked(name):
    with pytest.raises(ConfigError, match=r"cluster\.links"):
        joined_cluster(RayCluster(ray=NOBODY, links=name))


def test_a_cluster_that_is_not_there_is_refused_before_this_machine_is_measured():
    said = []
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        measure({}, 1, said.append, ray=NOBODY)
    assert len(said) == 1


def test_machines_keep_their_addresses():
    found = cluster(machine("a", 1), machine("b", 2))
    assert [node.address for node in found.nodes] == ["b", "a"]
