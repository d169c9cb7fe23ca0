"""Machines of a Ray cluster as a profile has them: read, refused, and turned into a cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.profiled.measured_cluster import measured_cluster
from flexrlhf.planning.costs.profiled.profile import profile_from
from flexrlhf.planning.costs.profiled.setting import typical_cpu

DOCUMENT = typical_cpu(Cluster.uniform("cpu-core", nodes=1, devices_per_node=1)).to_document()
RATES = {("a", "b"): 1e7, ("a", "c"): 1.1e7, ("b", "c"): 1.2e7}
SPEEDS = {"a": 100.0, "b": 95.0, "c": 52.0}


def document(rates: dict[tuple[str, str], float] = RATES) -> dict[str, Any]:
    """A profile with three machines."""
    return copy.deepcopy(DOCUMENT) | {
        "joined": {
            "products_per_s": 200.0,
            "machines": [{"address": a, "products_per_s": s} for a, s in SPEEDS.items()],
            "links": [
                {"between": list(pair), "bytes_per_s": rate, "latency_s": 1e-4}
                for pair, rate in rates.items()
            ],
        }
    }


def machines(*addresses: str) -> Cluster:
    """So many cores of the catalogue, each on a machine of its own."""
    core = Cluster.uniform("cpu-core", nodes=1, devices_per_node=1).nodes[0]
    nodes = tuple(
        Node(place, core.device, (place,), core.link, "ray", address)
        for place, address in enumerate(addresses)
    )
    return Cluster(nodes, {frozenset({"ray"}): link_type("Ethernet-10G")})


def measured(
    *addresses: str, rates: dict[tuple[str, str], float] = RATES
) -> tuple[Cluster, list[str]]:
    found = measured_cluster(machines(*addresses), profile_from(document(rates), "x"))
    return found, [node.pool for node in found.nodes]


def test_what_is_written_reads_back_equal() -> None:
    profile = profile_from(document(), "here")
    assert profile.to_document() == document()
    assert profile.joined is not None
    assert profile.joined.links[0].between == ("a", "b")


def test_links_that_are_alike_make_a_pool_with_the_slowest_of_them() -> None:
    found, pools = measured("a", "b")
    assert pools == ["ray", "ray"]
    link = found.link_between(*found.nodes)
    assert (link.bandwidth, link.latency_s) == (1e7, 1e-4)
    assert link.rate(0.5) == 1e7  # of what was measured nothing is taken off


def test_a_machine_that_is_half_as_fast_is_a_pool_of_its_own() -> None:
    found, pools = measured("a", "b", "c")
    assert pools == ["ray", "ray", "ray at 0.50"]
    fast, _, slow = (node.device for node in found.nodes)
    assert slow.flops["float32"] == pytest.approx(fast.flops["float32"] / 2)
    assert found.link_between(found.nodes[1], found.nodes[2]).bandwidth == 1.1e7


def test_where_links_are_unlike_every_machine_is_a_pool() -> None:
    rates = RATES | {("b", "c"): 1e9}
    found, pools = measured("a", "b", "c", rates=rates)
    assert pools == ["a", "b", "c"]
    assert found.link_between(found.nodes[1], found.nodes[2]).bandwidth == 1e9
    assert found.link_between(found.nodes[0], found.nodes[2]).bandwidth == 1.1e7


def test_a_machine_that_was_not_measured_is_named() -> None:
    with pytest.raises(ConfigError, match="nothing of the machine d") as refused:
        measured("a", "d")
    assert "a, b, c" in refused.value.right


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"products_per_s": -1}, "joined.products_per_s = -1: not accepted"),
        ({"machines": []}, "joined.machines: a machine without an address, or none at all."),
        ({"machines": [{"address": "a"}]}, "joined.machines.0.products_per_s: missing."),
        ({"links": [{"between": ["a", "d"]}]}, 'joined.links.0.between = ["a", "d"]: no link.'),
        ({"links": [{"between": 3}]}, "joined.links.0.bytes_per_s: missing."),
        ({"speeds": 1}, "joined.speeds: unknown key."),
        ({"links": 7}, "joined.links = 7: no list of rows."),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    wrong = document()
    wrong["joined"] |= change
    with pytest.raises(ConfigError) as refused:
        profile_from(wrong, "x")
    assert said in str(refused.value)
