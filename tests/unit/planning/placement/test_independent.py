"""Interleaving rests on tasks that wait for none of the others, which the graph confirms."""

from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.independent import independent_models, why_not_interleaved
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape


@pytest.mark.parametrize(
    ("spec", "models"),
    [
        (algorithm_spec("ppo"), ("reference", "reward")),
        (algorithm_spec("ppo", uses_reference=False), ("reward",)),
        (algorithm_spec("grpo", has_reward_model=False), ("reference",)),
        (algorithm_spec("dpo"), ()),
        (algorithm_spec("sft"), ()),
    ],
)
def test_independent_models(spec, models):
    assert independent_models(spec) == models
    assert bool(why_not_interleaved(spec)) is (len(models) < 2)


def ancestors(graph, name):
    waits_for = graph.waits_for()
    found, open_names = set(), [name]
    while open_names:
        earlier = set(waits_for[open_names.pop()]) - found
        found |= earlier
        open_names += earlier
    return found


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo", "two rewards"])
def test_interleaved_models_wait_for_none_of_the_others_and_share_no_device(
    name, two_rewards, cluster
):
    spec = two_rewards if name == "two rewards" else algorithm_spec(name)
    arrangement = arrangements("interleaved_1", spec, cluster(1, 7))[0]
    placement = {
        role: RolePlacement(devices, data_parallel=len(devices))
        for role, devices in arrangement.devices.items()
    }
    plan = Plan(1, arrangement.strategy, feasible=True, why="asked", placement=placement)
    graph = iteration_graph(spec, plan, IterationShape(num_samples=6), 0)
    frozen = [task for task in graph.tasks if task.role in spec.frozen]
    assert {task.role for task in frozen} == set(independent_models(spec))
    for task in frozen:
        assert not ancestors(graph, task.name) & {other.name for other in frozen}
    devices = {group.name: group.devices for group in graph.groups}
    held = [device for task in frozen for device in devices[task.group]]
    assert sorted(held) == list(range(7))
