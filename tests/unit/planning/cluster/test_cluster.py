"""Clusters as values: numbering, look-up, links, prices, parts."""

from __future__ import annotations

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import device_type
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type

NVLINK = link_type("NVLink3")
SLOW = Link("slow", 1e9, 1e-5, "a test")


def unlike() -> Cluster:
    """Two nodes of two A100 and one of three V100, joined by a slow link."""
    a100, v100 = device_type("A100-80G"), device_type("V100-32G")
    return Cluster(
        nodes=(
            Node(0, a100, (0, 1), NVLINK, "train"),
            Node(1, a100, (2, 3), NVLINK, "train"),
            Node(2, v100, (4, 5, 6), link_type("NVLink2"), "generate"),
        ),
        between={
            frozenset({"train"}): link_type("InfiniBand-8x200G"),
            frozenset({"train", "generate"}): SLOW,
        },
    )


def test_a_uniform_cluster():
    cluster = Cluster.uniform("A100-80G", nodes=4, devices_per_node=8)
    assert cluster.num_devices == 32
    assert cluster.devices == tuple(range(32))
    assert [node.devices for node in cluster.nodes[1:3]] == [
        tuple(range(8, 16)),
        tuple(range(16, 24)),
    ]
    assert cluster.nodes[0].link == NVLINK
    assert cluster.link_between(cluster.nodes[0], cluster.nodes[3]).bandwidth == 200e9
    assert cluster.is_uniform
    assert str(cluster) == "4 x 8 A100-80G (all)"


def test_a_uniform_cluster_of_given_values():
    cluster = Cluster.uniform(
        device_type("A10"), nodes=2, devices_per_node=1, link="PCIe3", between=SLOW
    )
    assert cluster.nodes[0].link == link_type("PCIe3")
    assert cluster.link_between(*cluster.nodes) == SLOW


@pytest.mark.parametrize(("nodes", "devices"), [(0, 8), (4, 0), (-1, 8)])
def test_counts_below_one_are_refused(nodes, devices):
    with pytest.raises(ConfigError, match=rf"A cluster of {nodes} nodes with {devices} devices"):
        Cluster.uniform("A10", nodes=nodes, devices_per_node=devices)


def test_every_device_knows_its_node():
    cluster = unlike()
    assert [cluster.node_of(device).index for device in range(7)] == [0, 0, 1, 1, 2, 2, 2]
    assert cluster.device_type(3).name == "A100-80G"
    assert cluster.device_type(4).name == "V100-32G"


def test_the_nodes_of_devices_come_once_and_in_order():
    cluster = unlike()
    assert [node.index for node in cluster.nodes_of([6, 0, 5, 1])] == [0, 2]
    assert cluster.nodes_of([]) == ()


def test_links_between_nodes():
    cluster = unlike()
    first, second, third = cluster.nodes
    assert cluster.link_between(second, second) == NVLINK
    assert cluster.link_between(first, second).name == "InfiniBand-8x200G"
    assert cluster.link_between(first, third) == cluster.link_between(third, second) == SLOW


def test_a_link_that_is_not_described_is_refused():
    first, _, third = unlike().nodes
    cluster = Cluster((first, third), {})
    with pytest.raises(ConfigError, match=r"No link joins pool 'train' with pool 'generate'\."):
        cluster.link_between(first, third)


def test_pools():
    pools = unlike().pools
    assert {pool: [node.index for node in nodes] for pool, nodes in pools.items()} == {
        "train": [0, 1],
        "generate": [2],
    }


def test_what_is_uniform():
    cluster = unlike()
    assert not cluster.is_uniform
    assert cluster.subset(range(4)).is_uniform
    assert not cluster.subset(range(3)).is_uniform
    assert cluster.subset([4]).is_uniform
    mixed_links = Cluster(
        (*cluster.nodes[:2], Node(2, cluster.nodes[0].device, (4, 5), NVLINK, "far")),
        {**cluster.between, frozenset({"train", "far"}): SLOW},
    )
    assert not mixed_links.is_uniform


def test_prices_add_up_and_one_unknown_makes_all_unknown():
    cluster = unlike()
    assert cluster.price_per_hour([0, 4]) == pytest.approx(2.79 + 0.79)
    assert cluster.price_per_hour() == pytest.approx(4 * 2.79 + 3 * 0.79)
    assert cluster.price_per_hour([]) == 0
    free = Cluster.uniform("H20-96G", nodes=1, devices_per_node=2)
    assert free.price_per_hour() is None


def test_a_part_keeps_the_numbers():
    part = unlike().subset([5, 1, 6])
    assert part.devices == (1, 5, 6)
    assert [node.index for node in part.nodes] == [0, 2]
    assert part.link_between(*part.nodes) == SLOW
    assert part.node_of(6).devices == (5, 6)


@pytest.mark.parametrize("device", [7, -1])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ConfigError) as caught:
        unlike().nodes_of([0, device])
    assert caught.value.wrong == f"There is no device {device}."
    assert caught.value.right == "The cluster has 7 devices, 0 to 6."


def test_a_device_in_two_nodes_is_refused():
    first, second, _ = unlike().nodes
    twice = Node(1, second.device, (1, 2), NVLINK, "train")
    with pytest.raises(ConfigError, match="stands in two nodes"):
        Cluster((first, twice), {})


@pytest.mark.parametrize("nodes", [(), (Node(0, device_type("A10"), (), NVLINK, "x"),)])
def test_a_cluster_without_devices_is_refused(nodes):
    with pytest.raises(ConfigError, match=r"The cluster has no devices\."):
        Cluster(nodes, {})


def test_clusters_compare_by_value_and_can_be_keys():
    assert unlike() == unlike()
    assert len({unlike(), unlike(), unlike().subset([0])}) == 2
