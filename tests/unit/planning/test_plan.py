from __future__ import annotations

import json

import pytest

from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import labelled
from flexrlhf.planning.placement.plan import Plan, RolePlacement, plans_document
from flexrlhf.planning.placement.prediction import Prediction

WINNER = Plan(
    rank=1,
    strategy="disaggregated",
    chosen_by="auto",
    feasible=True,
    placement={
        "actor": RolePlacement((0, 1), data_parallel=2, zero_stage=3, micro_batch_samples=4),
        "shadow_actor": RolePlacement((2, 3), tensor_parallel=2),
    },
    predicted=Prediction(
        iteration_s=12.3,
        samples_per_s=41.0,
        stage_s={"generate": 7.0, "train": 3.9},
        shares={"bubble": 0.12, "generate": 0.88},
        peak_bytes={0: {"generate": 61_000_000_000}, 2: {"train": 5}},
        copies={"actor": 1, "reference": 0.5},
        max_batch=36,
    ),
    bound_by="communication",
    why="Generation overlaps training.",
)
LOSER = Plan(rank=None, strategy="colocated", feasible=False, why="Needs 91.2 GiB of 80 GiB.")


@pytest.mark.parametrize("plan", [WINNER, LOSER])
def test_json_round_trip_is_exact(plan):
    text = json.dumps(plan.to_json())
    again = Plan.from_json(json.loads(text))
    assert again == plan
    assert json.dumps(again.to_json()) == text


def test_json_has_the_documented_keys():
    document = WINNER.to_json()
    assert list(document) == [
        "rank",
        "strategy",
        "chosen_by",
        "feasible",
        "export_only",
        "placement",
        "predicted",
        "bound_by",
        "why",
    ]
    assert document["placement"]["actor"] == {
        "devices": [0, 1],
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "data_parallel": 2,
        "zero_stage": 3,
        "offload": False,
        "micro_batch_samples": 4,
    }
    assert document["predicted"]["peak_bytes"] == {
        "0": {"generate": 61_000_000_000},
        "2": {"train": 5},
    }


def test_keys_that_do_not_apply_are_absent():
    assert LOSER.to_json() == {
        "rank": None,
        "strategy": "colocated",
        "feasible": False,
        "why": "Needs 91.2 GiB of 80 GiB.",
    }
    assert "micro_batch_samples" not in RolePlacement((0,)).to_json()
    assert "cost_per_1k_samples" not in WINNER.to_json()["predicted"]


def test_the_whole_document():
    request = {"strategy": "all"}
    document = plans_document(request, [WINNER, LOSER])
    assert list(document) == ["request", "plans"]
    search = {"candidates": 5312, "simulated": 240, "seconds": 1.7}
    document = plans_document(request, [WINNER, LOSER], search)
    assert document["search"] == search
    assert [plan["rank"] for plan in document["plans"]] == [1, None]


def test_devices_of_a_plan():
    assert WINNER.devices == (0, 1, 2, 3)
    assert LOSER.devices == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": (0, 1)}, "does not make 2 devices"),
        ({"devices": ()}, "does not make 0 devices"),
        ({"devices": (0, 0), "data_parallel": 2}, r"devices \[0, 0\]"),
        ({"devices": (0,), "data_parallel": -1, "tensor_parallel": -1}, "at least 1"),
        ({"devices": (0,), "zero_stage": 4}, "zero_stage = 4"),
    ],
)
def test_impossible_degrees_are_refused(values, message):
    with pytest.raises(PlanError, match=message):
        RolePlacement(**values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"possible": True}, "unknown: possible"),
        ({"strategy": "disagregated"}, "'disaggregated'"),
        ({"placement": {"actor_": {"devices": [0]}}}, "'actor'"),
        ({"placement": {"actor": {"device": [0]}}}, "unknown: device; missing: devices"),
        ({"predicted": {"iteration_s": 1.0}}, "prediction"),
    ],
)
def test_a_foreign_document_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        Plan.from_json(WINNER.to_json() | change)


def test_the_optional_keys_of_a_role_round_trip_and_are_absent_unless_given():
    placement = RolePlacement(
        tuple(range(16)),
        data_parallel=8,
        tensor_parallel=2,
        zero_stage=3,
        shard_devices=8,
        generation="tensor_parallel",
        generation_tensor_parallel=4,
    )
    document = json.loads(json.dumps(placement.to_json()))
    assert document["shard_devices"] == 8
    assert document["generation"] == "tensor_parallel"
    assert RolePlacement.from_json(document) == placement
    optional = {"shard_devices", "generation", "generation_tensor_parallel"}
    assert not optional & RolePlacement((0,)).to_json().keys()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shard_devices": 3}, "shard_devices = 3 on 8 devices"),
        ({"shard_devices": 0}, "shard_devices = 0 on 8 devices"),
        ({"shard_devices": 1}, "is a multiple of 2"),
        ({"generation_tensor_parallel": 5}, "generation_tensor_parallel = 5 on 8 devices"),
    ],
)
def test_blocks_divide_the_devices(changes, said):
    with pytest.raises(PlanError, match=said):
        RolePlacement(tuple(range(8)), tensor_parallel=2, data_parallel=4, **changes)


def test_an_unknown_way_to_generate_is_refused():
    document = RolePlacement((0,), generation="gathered").to_json() | {"generation": "gather"}
    with pytest.raises(PlanError, match="Did you mean 'gathered'"):
        RolePlacement.from_json(document)


def test_a_labelled_role_has_a_place_and_an_unknown_one_does_not():
    plan = Plan(
        rank=1,
        strategy="custom",
        feasible=True,
        why="asked",
        placement={labelled("reward", "safety"): RolePlacement((0,))},
    )
    document = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(document) == plan
    document["placement"] = {"rewart:safety": {"devices": [0]}}
    with pytest.raises(PlanError, match="Did you mean 'reward'"):
        Plan.from_json(document)
