"""Where the processes of a role stand, and that they hear each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from process_pool import ProcessPool
from role_cases import error_of

from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees


def places(ranks: list[int], degrees: dict[str, Any]) -> dict[str, Any] | None:
    mesh = RoleMesh.create(ranks, ShardDegrees(**degrees))
    if not mesh.is_member:
        return None
    return {
        "position": mesh.position,
        "replica": mesh.replica,
        "tensor": mesh.tensor_rank,
        "stage": mesh.stage,
        "last": mesh.is_last_stage,
        "stages": mesh.stage_ranks,
        "block": mesh.block_index,
        "shard": mesh.shard_index,
        "tensor group": dist.get_process_group_ranks(mesh.tensor_group),
        "shard group": dist.get_process_group_ranks(mesh.shard_group),
        "block group": dist.get_process_group_ranks(mesh.block_group),
        "heard": mesh.gather({"from": mesh.position, "text": "é" * mesh.position, "number": 0.1}),
    }


def test_consecutive_ranks_share_a_replica(process_pool: ProcessPool):
    degrees = {"tensor": 2, "data": 2, "zero_stage": 3}
    placed = process_pool.run(places, ranks=[2, 3, 0, 1], degrees=degrees)
    for rank, one in enumerate(placed):
        position = [2, 3, 0, 1].index(rank)
        assert one["position"] == position
        assert (one["replica"], one["tensor"]) == divmod(position, 2)
        assert (one["stage"], one["last"], one["stages"]) == (0, True, [rank])
        assert (one["block"], one["shard"]) == (0, 1 - one["replica"])  # groups are ascending
        assert one["tensor group"] == ([2, 3] if rank > 1 else [0, 1])
        assert sorted(one["shard group"]) == [rank % 2, rank % 2 + 2]
        assert one["block group"] == [rank]
        assert one["heard"] == [
            {"from": other, "text": "é" * other, "number": 0.1} for other in range(4)
        ]


def test_blocks_are_consecutive_replicas(process_pool: ProcessPool):
    degrees = {"data": 4, "zero_stage": 1, "shard_replicas": 2}
    placed = process_pool.run(places, ranks=[0, 1, 2, 3], degrees=degrees)
    assert [(one["block"], one["shard"]) for one in placed] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [one["shard group"] for one in placed] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [one["block group"] for one in placed] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def ends(ranks: list[int], degrees: dict[str, Any]) -> dict[str, Any]:
    mesh = RoleMesh.create(ranks, ShardDegrees(**degrees))
    assert mesh.ends_group is not None
    return {
        "stage group": dist.get_process_group_ranks(mesh.stage_group),
        "ends": dist.get_process_group_ranks(mesh.ends_group),
        "replicas": mesh.gather_replicas(dist.get_rank()),
    }


def test_stages_are_outermost(process_pool: ProcessPool):
    ranks, degrees = [2, 3, 1, 0], {"pipeline": 2, "data": 2}
    placed = process_pool.run(places, ranks=ranks, degrees=degrees)
    for rank, one in enumerate(placed):
        assert (one["stage"], one["replica"]) == divmod(ranks.index(rank), 2)
        assert one["stages"] == ([2, 1] if rank in {1, 2} else [3, 0])
        assert one["last"] == (rank < 2)
    for rank, one in enumerate(process_pool.run(ends, ranks=ranks, degrees=degrees)):
        expected = [1, 2] if rank in {1, 2} else [0, 3]
        assert (sorted(one["stage group"]), sorted(one["ends"])) == (expected, expected)
        assert one["replicas"] == [1, 0]


def test_the_ends_of_four_stages_meet(process_pool: ProcessPool):
    for rank, (ends_group, stage_group) in enumerate(process_pool.run(ends_of_four)):
        assert ends_group == ([0, 3] if rank in {0, 3} else None)
        assert stage_group == [0, 1, 2, 3]


def ends_of_four() -> list[Any]:
    mesh = RoleMesh.create([0, 1, 2, 3], ShardDegrees(pipeline=4))
    found = mesh.ends_group and dist.get_process_group_ranks(mesh.ends_group)
    return [found, dist.get_process_group_ranks(mesh.stage_group)]


def test_processes_that_are_not_the_roles_are_no_members(process_pool: ProcessPool):
    placed = process_pool.run(places, ranks=[3, 1], degrees={"data": 2})
    assert [one and one["position"] for one in placed] == [None, 1, None, 0]
    assert placed[1]["heard"][0]["from"] == 0


def refusals() -> list[str]:
    wrong = [
        ([0, 1], ShardDegrees(pipeline=4)),
        ([0, 1, 2], ShardDegrees(tensor=2)),
        ([1, 1], ShardDegrees(data=2)),
    ]
    return [
        error_of(lambda ranks=ranks, degrees=degrees: RoleMesh.create(ranks, degrees))
        for ranks, degrees in wrong
    ]


def test_what_cannot_be_is_refused_before_a_group_is_made(process_pool: ProcessPool):
    for too_few, too_many, twice in process_pool.run(refusals):
        assert "These degrees need 4 processes" in too_few
        assert "These degrees need 2 processes" in too_many
        assert "each once" in twice


@pytest.mark.parametrize(
    ("degrees", "text"),
    [
        ({"tensor": 0}, "at least 1"),
        ({"zero_stage": 4}, "0, 1, 2 or 3"),
        ({"data": 4, "shard_replicas": 3}, "blocks of 3 of 4"),
        ({"data": 2, "pipeline": 2, "zero_stage": 2}, "2 pipeline stages and has ZeRO stage 2"),
    ],
)
def test_degrees_out_of_range_are_refused(degrees: dict[str, Any], text: str):
    assert text in error_of(lambda: ShardDegrees(**degrees))
