from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import ScoreStep, algorithm_spec
from flexrlhf.core.names import labelled
from flexrlhf.planning.cluster.cluster import Cluster, Node

PPO = algorithm_spec("ppo")


@pytest.fixture
def ppo():
    return PPO


@pytest.fixture
def two_rewards():
    """PPO with a second reward model."""
    return replace(PPO, scored=(*PPO.scored, ScoreStep(labelled("reward", "safety"), "rewards")))


@pytest.fixture
def cluster():
    """Makes equal nodes: `cluster(2, 8)` is two with eight devices each."""

    def make(nodes: int, devices: int) -> Cluster:
        return Cluster.uniform("A100-80G", nodes=nodes, devices_per_node=devices)

    return make


@pytest.fixture
def mixed():
    """Eight A100 in one node and eight V100 in another, slow ones first."""
    fast = Cluster.uniform("A100-80G", nodes=1, devices_per_node=8).nodes[0]
    slow = Cluster.uniform("V100-32G", nodes=1, devices_per_node=8).nodes[0]
    nodes = (
        Node(0, slow.device, tuple(range(8)), slow.link, "old"),
        Node(1, fast.device, tuple(range(8, 16)), fast.link, "new"),
    )
    between = Cluster.uniform("A100-80G", nodes=2, devices_per_node=1).between
    (link,) = between.values()
    return Cluster(nodes, {frozenset({"old", "new"}): link})
