"""What a node more would give the winner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.another_node import with_another_node
from flexrlhf.planning.search.plans import ranked_plans
from flexrlhf.planning.search.request import PlanRequest


def request_on(cluster):
    spec = algorithm_spec("grpo", uses_reference=False, has_reward_model=False)
    return PlanRequest(
        spec,
        cluster,
        {"actor": HeldModel(shape_named("llama-7b"), is_trained=True)},
        Workload(512, Lengths.fixed(128), Lengths.fixed(512)),
    )


def a100(nodes):
    return Cluster.uniform("A100-80G", nodes=nodes, devices_per_node=4)


def test_a_node_more_is_like_the_last_with_new_numbers():
    larger = with_another_node(a100(2), "all")
    assert larger == a100(3)


def test_its_gain_is_what_the_search_finds_on_the_larger_cluster():
    choices = Choices(strategy="colocated")
    ranked = ranked_plans(request_on(a100(2)), choices)
    larger = ranked_plans(request_on(a100(3)), choices).best
    gain = ranked.best.predicted.iteration_s / larger.predicted.iteration_s
    assert ranked.another_node["all"] == pytest.approx(gain)
    assert 1.2 < gain <= 1.5
    assert f"One more node would give x{gain:.2f}." in ranked.best.why


def test_a_node_that_helps_nothing_is_said_to():
    """Twelve devices divide no batch of eight, so the fastest plan leaves four unused."""
    request = request_on(a100(2))
    request = replace(request, workload=Workload(8, Lengths.fixed(128), Lengths.fixed(128)))
    choices = Choices(strategy="colocated")
    ranked = ranked_plans(request, choices)
    larger = ranked_plans(replace(request, cluster=a100(3)), choices).best
    gain = ranked.best.predicted.iteration_s / larger.predicted.iteration_s
    assert ranked.another_node["all"] == pytest.approx(max(1.0, gain))


def test_a_list_of_devices_has_no_use_for_a_node_more():
    ranked = ranked_plans(request_on(a100(2)), Choices(devices={"actor": tuple(range(8))}))
    assert ranked.another_node == {}
    assert "One more node" not in ranked.best.why


def test_without_a_link_between_nodes_none_is_added():
    cluster = Cluster(a100(1).nodes, {})
    assert with_another_node(cluster, "all") is None
    assert ranked_plans(request_on(cluster), Choices(strategy="colocated")).another_node == {}
