"""Rings against nccl-tests' formulas in plain numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.collectives import (
    all_gather_s,
    all_reduce_s,
    late_s,
    reduce_scatter_s,
)
from flexrlhf.planning.costs.groups import shard_group, tensor_group
from flexrlhf.planning.costs.layout import Layout

EXACT = replace(
    DEFAULT, link_efficiency=1.0, network_efficiency=1.0, congestion=0.0, collective_s=1e-5
)


@pytest.fixture
def cluster():
    """Two nodes of 8 A100: 300 GB/s inside, 200 GB/s per node between."""
    return Cluster.uniform("A100-80G", nodes=2, devices_per_node=8)


def _group(cluster, size):
    return tensor_group(cluster, range(size), Layout(tensor=size))


def test_a_ring_inside_a_node_moves_seven_eighths(cluster):
    group = _group(cluster, 8)
    moved_s = 7 / 8 * 1e9 / 300e9
    hops_s = 3 * 1.9e-6
    assert all_gather_s(1e9, group, EXACT) == pytest.approx(moved_s + hops_s)
    assert reduce_scatter_s(1e9, group, EXACT) == pytest.approx(moved_s + hops_s)
    assert all_reduce_s(1e9, group, EXACT) == pytest.approx(2 * (moved_s + hops_s))


def test_a_ring_over_nodes_is_as_fast_as_their_adapters(cluster):
    group = shard_group(cluster, range(16), Layout(data=16, shard=16, zero_stage=3))
    assert all_gather_s(1e9, group, EXACT) == pytest.approx(15 / 16 * 1e9 / 200e9 + 4 * 4e-6)


def test_rings_beside_each_other_share_the_adapters(cluster):
    layout = Layout(tensor=8, data=2, shard=2, zero_stage=3)
    group = shard_group(cluster, range(16), layout)
    assert group.rivals == 8
    assert all_gather_s(1e9, group, EXACT) == pytest.approx(1 / 2 * 1e9 / (200e9 / 8) + 4e-6)


def test_congestion_grows_with_each_doubling_of_the_nodes(cluster):
    congested = replace(EXACT, congestion=0.5)
    group = shard_group(cluster, range(16), Layout(data=16, shard=16, zero_stage=3))
    moved_s = 15 / 16 * 1e9 / 200e9
    assert all_gather_s(1e9, group, congested) == pytest.approx(1.5 * moved_s + 4 * 4e-6)


def test_one_device_waits_for_nobody(cluster):
    assert all_reduce_s(1e12, _group(cluster, 1), EXACT) == 0.0


def test_members_come_later_where_nodes_are_apart(cluster):
    over = shard_group(cluster, range(16), Layout(data=16, shard=16))
    assert late_s(_group(cluster, 8), EXACT) == 1e-5
    assert late_s(over, EXACT) == 2e-5
