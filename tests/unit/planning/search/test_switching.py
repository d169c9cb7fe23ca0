"""From stage to stage: what has to move, and which plans are best together."""

from __future__ import annotations

from itertools import product

import pytest

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.placement.plan import RolePlacement
from flexrlhf.planning.search.stage_plans import stage_plans
from flexrlhf.planning.search.switching import HeldWeights, best_together, switch_s

GB = 1e9


def held(content, devices, *, num_bytes=10 * GB, **degrees):
    return HeldWeights(content, RolePlacement(devices, **degrees), num_bytes)


@pytest.fixture
def cluster():
    return Cluster.uniform("A100-80G", nodes=2, devices_per_node=2)


def test_weights_that_stay_in_place_cost_nothing(cluster):
    there = held("stage:sft/actor", (0, 1), data_parallel=2, zero_stage=3)
    assert switch_s(cluster, DEFAULT, [there], [there]) == 0.0


def test_weights_that_another_split_wants_come_over_the_links(cluster):
    before = held("stage:sft/actor", (0, 1), data_parallel=2, zero_stage=3)
    inside = held("stage:sft/actor", (0, 1), tensor_parallel=2)
    link = cluster.nodes[0].link.bandwidth * DEFAULT.link_efficiency
    assert switch_s(cluster, DEFAULT, [before], [inside]) == pytest.approx(10 * GB / (2 * link))
    across = held("stage:sft/actor", (2, 3), tensor_parallel=2)
    network = cluster.between[frozenset({"all"})].bandwidth * DEFAULT.sync_efficiency
    assert switch_s(cluster, DEFAULT, [before], [across]) == pytest.approx(10 * GB / network)


def test_other_weights_are_read_once_per_node(cluster):
    wanted = [
        held("models/reward", (0, 1, 2, 3), data_parallel=4),
        held("models/critic", (0, 1), data_parallel=2),
    ]
    assert switch_s(cluster, DEFAULT, [], wanted) == pytest.approx(20 * GB / 2e9)


def test_the_best_plans_together_are_those_of_all_combinations():
    work = [[10.0, 12.0], [30.0, 29.0, 40.0], [5.0, 5.5]]
    switches = [
        [[3.0, 9.0, 0.0], [0.0, 1.0, 2.0]],
        [[1.0, 0.0], [0.0, 4.0], [2.0, 2.0]],
    ]

    def total(chosen):
        own = sum(stage[index] for stage, index in zip(work, chosen, strict=True))
        return own + sum(s[a][b] for s, a, b in zip(switches, chosen, chosen[1:], strict=False))

    every = product(*(range(len(stage)) for stage in work))
    assert total(best_together(work, switches)) == min(map(total, every))


def run_of(iterations):
    """SFT, then GRPO from what it made."""
    return resolve(
        build_config(
            {
                "stages": [
                    {
                        "name": "sft",
                        "algorithm": {"name": "sft"},
                        "model": {"actor": {"shape": "llama-7b"}},
                        "training": {"prompts_per_iteration": 64, "iterations": iterations},
                        "cluster": CLUSTER,
                    },
                    {
                        "name": "grpo",
                        "algorithm": {"name": "grpo", "kl_coef": 0.0},
                        "model": {"actor": {"path": "stage:sft/actor"}},
                        "data": {"max_prompt_tokens": 64},
                        "rollout": {"max_new_tokens": 64},
                        "training": {"prompts_per_iteration": 64, "iterations": iterations},
                        "reward": {"functions": [{"name": "math"}]},
                        "cluster": CLUSTER,
                    },
                ]
            }
        )
    )


CLUSTER = {"nodes": [{"count": 1, "devices": 8, "type": "A100-80G"}]}


def test_a_run_of_stages_counts_what_going_from_one_to_the_next_takes():
    first, second = stage_plans(run_of(50))
    assert first.switch_s is None
    assert second.switch_s is not None
    assert 0.0 <= second.switch_s < 60.0


def test_few_iterations_are_not_worth_moving_for():
    long, short = (stage_plans(run_of(n)) for n in (10**6, 1))
    assert long[1].ranked.best.predicted.iteration_s <= short[1].ranked.best.predicted.iteration_s
    assert short[1].switch_s <= long[1].switch_s
    assert [plan.rank for plan in short[1].ranked.plans if plan.feasible] == list(
        range(1, len(short[1].ranked.found) + 1)
    )
