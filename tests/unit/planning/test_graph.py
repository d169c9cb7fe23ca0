from __future__ import annotations

import pytest

from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup

GROUPS = (DeviceGroup("a", (0,), ("actor",)), DeviceGroup("b", (1,), ("reward",)))


def task(name, group="a", iteration=0):
    return Task(name, iteration, "score", "rewards", group)


def transfer(sources, targets, name="move", iteration=0):
    return Transfer(name, iteration, "experience", "a", "b", sources, targets)


def test_transfers_wait_for_their_sources_and_are_waited_for():
    graph = Graph(
        0,
        GROUPS,
        (task("last", "b"), task("first"), task("second")),
        (transfer(("second",), ("last",)),),
        {"second": ("first",)},
    )
    assert graph.waits_for() == {
        "first": (),
        "second": ("first",),
        "move": ("second",),
        "last": ("move",),
    }


@pytest.mark.parametrize(
    ("tasks", "transfers", "after", "message"),
    [
        ((task("x"), task("x")), (), {}, "used twice"),
        ((task("x"), task("y", "b")), (transfer(("x",), ("y",), "x"),), {}, "used twice"),
        ((task("x"),), (), {"x": ("y",)}, "'y' is no task"),
        ((task("x"),), (), {"y": ("x",)}, "'y' is no task"),
        ((task("x", "c"),), (), {}, "in a group that the graph lacks"),
        ((task("x", iteration=1),), (), {}, "not of iteration 0"),
        ((task("x"), task("y", "b")), (transfer(("x",), ("y",), iteration=1),), {}, "not of iter"),
        ((task("x"), task("y")), (transfer(("x",), ("y",)),), {}, "not tasks of its groups"),
        ((task("x"), task("y", "b")), (transfer(("x",), ("z",)),), {}, "not tasks of its groups"),
        ((task("x"), task("y", "b")), (transfer((), ("y",)),), {}, "not tasks of its groups"),
        ((task("x"), task("y")), (), {"x": ("y",), "y": ("x",)}, "cycle"),
        (
            (task("x"), task("y", "b"), task("z")),
            (transfer(("x",), ("y",)),),
            {"x": ("z",), "z": ("y",)},
            "cycle",
        ),
    ],
)
def test_what_is_no_graph_is_refused(tasks, transfers, after, message):
    with pytest.raises(ValueError, match=message):
        Graph(0, GROUPS, tasks, transfers, after)


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ({"operation": "generate", "role": "actor", "weight_version": 2}, "installed"),
        ({"operation": "logprobs", "role": "shadow_actor", "weight_version": 2}, "installed"),
        ({"operation": "logprobs", "role": "actor", "weight_version": 2}, "trained"),
        ({"operation": "forward_backward", "role": "critic", "weight_version": 2}, "trained"),
        ({"operation": "logprobs", "role": "reference"}, None),
        ({"operation": "install", "weight_version": 3}, None),
        ({"operation": "publish", "weight_version": 3}, None),
    ],
)
def test_whose_weights_a_task_needs(values, weights):
    assert Task("x", 2, "score", group="a", **values).weights == weights
