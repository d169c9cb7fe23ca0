"""Into how many parts a plan cuts a rollout: as many as the config says, or as are best."""

from __future__ import annotations

from typing import Any

import pytest

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.search.stage_plans import stage_plans


def parts_of(rollout: dict[str, Any], placement: dict[str, Any]) -> int:
    """Generation tasks of an iteration under the best plan."""
    config = build_config(
        {
            "algorithm": {"name": "ppo"},
            "model": {"actor": {"shape": "smollm2-135m"}, "reward": {"shape": "smollm2-135m"}},
            "data": {"max_prompt_tokens": 64},
            "rollout": {"max_new_tokens": 64, **rollout},
            "training": {"prompts_per_iteration": 24},
            "cluster": {"nodes": [{"count": 1, "devices": 4, "type": "A100-80G"}]},
            "placement": placement,
        }
    )
    (stage,) = stage_plans(resolve(config))
    (best, *_) = stage.ranked.found
    assert best.best.simulation is not None
    graph = best.best.simulation.graphs[0]
    parts = {task.micro_batch for task in graph.tasks if task.operation == "generate"}
    assert len(parts) == best.best.plan.rollout_micro_batches
    return len(parts)


@pytest.mark.parametrize("strategy", ["colocated", "interleaved_1", "disaggregated"])
def test_parts_that_the_config_asks_for_hold_for_every_placement(strategy: str):
    assert parts_of({"micro_batches": 12}, {"strategy": strategy}) == 12


def test_without_a_wish_one_group_generates_in_one_go():
    assert parts_of({}, {"strategy": "colocated"}) == 1


def test_without_a_wish_pools_may_stream():
    assert parts_of({}, {"strategy": "disaggregated"}) in (1, 2, 4, 8)
