from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import ScoreStep, algorithm_spec
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import labelled
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape

PPO = algorithm_spec("ppo")
SHAPE = IterationShape(
    num_samples=24,
    rollout_micro_batches=3,
    mini_batches=2,
    micro_batches_per_mini_batch=2,
    epochs=2,
)


def on_one_device(spec, shape=SHAPE, iteration=0):
    return iteration_graph(spec, one_device_plan(spec), shape, iteration)


def tasks_of(graph, **wanted):
    return [
        task
        for task in graph.tasks
        if all(getattr(task, key) == value for key, value in wanted.items())
    ]


def ancestors(graph, name):
    waits_for = graph.waits_for()
    found, open_names = set(), [name]
    while open_names:
        for earlier in waits_for[open_names.pop()]:
            if earlier not in found:
                found.add(earlier)
                open_names.append(earlier)
    return found


def test_ppo_on_one_device_counts():
    graph = on_one_device(PPO)
    operations = [task.operation for task in graph.tasks]
    assert {name: operations.count(name) for name in dict.fromkeys(operations)} == {
        "generate": 3,
        "logprobs": 6,
        "values": 3,
        "rewards": 3,
        "advantage": 1,
        "forward_backward": 2 * 2 * 2 * 2,  # epochs, mini-batches, roles, micro-batches
        "optimizer_step": 2 * 2 * 2,
        "install": 1,
    }
    assert graph.transfers == ()
    assert {task.group for task in graph.tasks} == {"main"}
    assert {task.stage for task in graph.tasks} == {
        "generate",
        "score",
        "advantage",
        "train",
        "sync",
    }


def test_scoring_waits_for_the_generation_of_its_micro_batch_alone():
    graph = on_one_device(PPO)
    for task in tasks_of(graph, stage="score"):
        assert ancestors(graph, task.name) == {f"generate/{task.micro_batch}"}


def test_the_barrier_waits_for_everything_before_and_holds_everything_after():
    graph = on_one_device(PPO)
    (barrier,) = tasks_of(graph, is_barrier=True)
    before = {t.name for t in graph.tasks if t.stage in ("generate", "score")}
    assert ancestors(graph, barrier.name) == before
    for task in tasks_of(graph, stage="train"):
        assert barrier.name in ancestors(graph, task.name)


def test_a_step_waits_for_its_micro_batches_and_these_for_the_step_before():
    graph = on_one_device(PPO)
    assert graph.after["optimizer_step/critic/epoch1/mini0"] == (
        "forward_backward/critic/epoch1/mini0/micro0",
        "forward_backward/critic/epoch1/mini0/micro1",
    )
    for micro in (0, 1):
        later = graph.after[f"forward_backward/critic/epoch1/mini0/micro{micro}"]
        assert later == ("optimizer_step/critic/epoch0/mini1",)


def test_actor_and_critic_train_independently():
    graph = on_one_device(PPO)
    for role, other in (("actor", "critic"), ("critic", "actor")):
        for task in tasks_of(graph, stage="train", role=role):
            assert not any(f"/{other}/epoch" in name for name in ancestors(graph, task.name))


def test_weight_versions_at_staleness_0():
    graph = on_one_device(PPO, iteration=7)
    versions = {(t.operation, t.role): t.weight_version for t in graph.tasks}
    assert versions == {
        ("generate", "actor"): 7,
        ("logprobs", "actor"): 7,
        ("values", "critic"): 7,
        ("logprobs", "reference"): None,
        ("rewards", "reward"): None,
        ("advantage", None): None,
        ("forward_backward", "actor"): 7,
        ("forward_backward", "critic"): 7,
        ("optimizer_step", "actor"): 7,
        ("optimizer_step", "critic"): 7,
        ("install", None): 8,
    }


def test_a_shared_trunk_trains_only_the_actor():
    graph = on_one_device(algorithm_spec("ppo", share_actor_critic=True))
    assert {task.role for task in tasks_of(graph, stage="train")} == {"actor"}
    assert not tasks_of(graph, operation="values")


def test_grpo_without_reference():
    graph = on_one_device(algorithm_spec("grpo", uses_reference=False))
    scored = {(task.operation, task.role) for task in tasks_of(graph, stage="score")}
    assert scored == {("logprobs", "actor"), ("rewards", "reward")}


@pytest.mark.parametrize(("name", "role"), [("sft", "actor"), ("reward_model", "reward")])
def test_training_on_given_examples(name, role):
    graph = on_one_device(algorithm_spec(name), iteration=2)
    (first, *others) = graph.tasks
    assert (first.operation, first.stage, first.is_barrier) == ("prepare", "train", True)
    assert {task.operation for task in others} == {"forward_backward", "optimizer_step"}
    assert {task.role for task in others} == {role}
    assert {task.weight_version for task in others} == {2}
    assert graph.after[others[0].name] == ("prepare",)


def test_two_pools_exchange_one_experience_per_micro_batch_and_one_set_of_weights(two_pools):
    graph = iteration_graph(PPO, two_pools, SHAPE, 0)
    in_group = {name: set() for name in ("generate", "train")}
    for task in graph.tasks:
        in_group[task.group].add(task.stage)
    assert in_group == {
        "generate": {"generate", "score", "sync"},
        "train": {"advantage", "train", "sync"},
    }
    experience = [t for t in graph.transfers if t.kind == "experience"]
    assert [t.name for t in experience] == [f"scores/{i}/generate->train" for i in range(3)]
    assert set(experience[1].sources) == {
        "generate/1",
        "logprobs/shadow_actor/1",
        "values/shadow_critic/1",
        "logprobs/reference/1",
        "rewards/reward/1",
    }
    assert experience[1].targets == ("advantage",)
    (weights,) = [t for t in graph.transfers if t.kind == "weights"]
    assert weights.roles == ("actor", "critic")
    assert (weights.sources, weights.targets) == (("publish/train",), ("install/generate",))
    assert set(graph.after["publish/train"]) == {
        "optimizer_step/actor/epoch1/mini1",
        "optimizer_step/critic/epoch1/mini1",
    }


def test_three_pools_send_samples_once_to_all_scorers(three_pools):
    graph = iteration_graph(PPO, three_pools, SHAPE, 0)
    samples = [t for t in graph.transfers if t.name.startswith("samples/")]
    assert len(samples) == 3
    assert samples[0].sources == ("generate/0",)
    assert set(samples[0].targets) == {
        "values/shadow_critic/0",
        "logprobs/reference/0",
        "rewards/reward/0",
    }
    weights = {t.target_group: t.roles for t in graph.transfers if t.kind == "weights"}
    assert weights == {"generate": ("actor",), "score": ("critic",)}
    assert len(tasks_of(graph, operation="publish")) == 1


def test_a_critic_without_shadow_scores_with_the_weights_it_trains(place):
    plan = place(actor=[0], critic=[0], shadow_actor=[1], reference=[1], reward=[1])
    shape = IterationShape(8, max_staleness=1)
    graph = iteration_graph(PPO, plan, shape, 5)
    (values,) = tasks_of(graph, operation="values")
    assert (values.role, values.group, values.weights, values.weight_version) == (
        "critic",
        "train",
        "trained",
        5,
    )
    (generate,) = tasks_of(graph, operation="generate")
    assert generate.weight_version == 4
    (weights,) = [t for t in graph.transfers if t.kind == "weights"]
    assert weights.roles == ("actor",)
    # The samples reach the training group for the critic, so that only scores follow them.
    names = {t.name: t.sources for t in graph.transfers if t.kind == "experience"}
    assert names == {
        "samples/0/generate->train": ("generate/0",),
        "scores/0/generate->train": (
            "logprobs/shadow_actor/0",
            "logprobs/reference/0",
            "rewards/reward/0",
        ),
    }


def test_roles_that_train_apart_get_their_mini_batches_once(place):
    plan = place(actor=[0], critic=[1], reference=[0], reward=[0])
    graph = iteration_graph(PPO, plan, SHAPE, 0)
    batches = [t for t in graph.transfers if t.name.startswith("batch/")]
    assert len(batches) == 2 * 2  # mini-batches, micro-batches; the second epoch has them
    assert {t.target_group for t in batches} == {"critic"}
    assert tasks_of(graph, operation="publish") == []


def test_interleaving_sends_samples_to_reference_and_reward_and_takes_scores_back(interleaved):
    graph = iteration_graph(PPO, interleaved, SHAPE, 0)
    ends = [
        (t.source_group, t.target_group) for t in graph.transfers if t.name.split("/")[1] == "0"
    ]
    assert ends == [
        ("actor+critic", "reference"),
        ("actor+critic", "reward"),
        ("reference", "actor+critic"),
        ("reward", "actor+critic"),
    ]
    assert [t.name for t in tasks_of(graph, stage="sync")] == ["install/actor+critic"]


def test_new_weights_flow_once_per_sync_period(two_pools):
    shape = IterationShape(8, sync_every=2, max_staleness=1)
    graphs = [iteration_graph(PPO, two_pools, shape, k) for k in range(4)]
    assert [len(tasks_of(graph, stage="sync")) for graph in graphs] == [0, 2, 0, 2]
    assert [tasks_of(graph, operation="generate")[0].weight_version for graph in graphs] == [
        0,
        0,
        2,
        2,
    ]


def test_every_iteration_has_the_same_tasks():
    first, later = on_one_device(PPO, iteration=0), on_one_device(PPO, iteration=9)
    assert [task.name for task in first.tasks] == [task.name for task in later.tasks]
    assert first.after == later.after


@pytest.mark.parametrize("plan_name", ["two_pools", "three_pools", "interleaved"])
def test_json_round_trip(plan_name, request):
    graph = iteration_graph(PPO, request.getfixturevalue(plan_name), SHAPE, 3)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_the_tasks_of_a_graph_stand_in_an_order_that_one_group_can_follow():
    graph = on_one_device(PPO)
    position = {task.name: place for place, task in enumerate(graph.tasks)}
    for name, waited in graph.after.items():
        assert all(position[earlier] < position[name] for earlier in waited)


def test_staleness_needs_a_shadow_actor():
    shape = IterationShape(8, max_staleness=1)
    with pytest.raises(PlanError, match="generates with the weights that it trains"):
        on_one_device(PPO, shape)
    assert on_one_device(algorithm_spec("sft"), shape)


def test_a_plan_for_another_algorithm_is_refused():
    with pytest.raises(PlanError, match="without a place: critic, reference, reward"):
        iteration_graph(PPO, one_device_plan(algorithm_spec("sft")), SHAPE, 0)
    with pytest.raises(PlanError, match="without a use: critic"):
        iteration_graph(algorithm_spec("grpo"), one_device_plan(PPO), SHAPE, 0)


def test_a_shadow_of_a_role_that_is_not_trained_is_refused(place):
    plan = place(actor=[0], reference=[0], reward=[0], shadow_critic=[1])
    with pytest.raises(PlanError, match="without a use: shadow_critic"):
        iteration_graph(algorithm_spec("grpo"), plan, SHAPE, 0)


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_the_reference_scores_given_examples_before_training(name):
    graph = on_one_device(algorithm_spec(name), replace(SHAPE, rollout_micro_batches=1))
    (score,) = tasks_of(graph, stage="score")
    assert (score.name, score.role, score.weight_version) == (
        "logprobs/reference/0",
        "reference",
        None,
    )
    assert ancestors(graph, score.name) == {"prepare"}
    trained = tasks_of(graph, stage="train", role="actor")
    assert len(trained) == 2 * 2 * (2 + 1)  # epochs, mini-batches, micro-batches and the step
    assert all(score.name in ancestors(graph, task.name) for task in trained)
    assert not tasks_of(graph, stage="sync")
    assert graph.transfers == ()


def test_kto_scores_and_trains_with_mismatched_answers_too():
    graph = on_one_device(algorithm_spec("kto"), replace(SHAPE, rollout_micro_batches=1))
    scores = [task.name for task in tasks_of(graph, stage="score")]
    assert scores == ["logprobs/reference/0", "mismatched/reference/0"]
    passes = tasks_of(graph, operation="forward")
    trained = tasks_of(graph, operation="forward_backward")
    assert len(passes) == len(trained) == 2 * 2 * 2  # epochs, mini-batches, micro-batches
    for before, after in zip(passes, trained, strict=True):
        assert before.role == "actor"
        assert before.weight_version == after.weight_version
        assert graph.waits_for()[after.name][0] == before.name
        assert set(scores) <= ancestors(graph, after.name)
    steps = tasks_of(graph, operation="optimizer_step")
    assert steps[0].name in ancestors(graph, passes[2].name)  # with the weights of the step before


def test_a_reference_elsewhere_gets_the_examples_and_sends_what_a_micro_batch_needs(place):
    spec, plan = algorithm_spec("dpo"), place(actor=[0, 1], reference=[2])
    graph = iteration_graph(spec, plan, replace(SHAPE, rollout_micro_batches=2), 0)
    moved = {(t.name, t.sources) for t in graph.transfers if t.target_group == "reference"}
    assert moved == {
        ("examples/0/actor->reference", ("prepare",)),
        ("examples/1/actor->reference", ("prepare",)),
    }
    back = [t for t in graph.transfers if t.source_group == "reference"]
    assert [t.name for t in back] == [
        f"batch/mini{mini}/{micro}/reference->actor" for mini in (0, 1) for micro in (0, 1)
    ]
    assert {t.sources for t in back} == {("logprobs/reference/0", "logprobs/reference/1")}


def test_two_reward_models_score_independently(place):
    safety = labelled("reward", "safety")
    spec = replace(PPO, scored=(*PPO.scored, ScoreStep(safety, "rewards")))
    plan = place(
        actor=[0, 1, 2], critic=[0, 1, 2], reference=[0], reward=[1], **{"reward:safety": [2]}
    )
    graph = iteration_graph(spec, plan, IterationShape(num_samples=6), 0)
    scores = {task.group: task.name for task in tasks_of(graph, stage="score")}
    assert scores["reward:safety"] == "rewards/reward:safety/0"
    assert all(not ancestors(graph, name) & set(scores.values()) for name in scores.values())
    (barrier,) = tasks_of(graph, is_barrier=True)
    assert set(scores.values()) <= ancestors(graph, barrier.name)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
