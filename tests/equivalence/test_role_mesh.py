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
        "leader": mesh.is_leader,
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
        assert one["leader"] == (position % 2 == 0)
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


def test_processes_that_are_not_the_roles_are_no_members(process_pool: ProcessPool):
    placed = process_pool.run(places, ranks=[3, 1], degrees={"data": 2})
    assert [one and one["position"] for one in placed] == [None, 1, None, 0]
    assert placed[1]["heard"][0]["from"] == 0


def refusals() -> list[str]:
    wrong = [
        ([0, 1], ShardDegrees(pipeline=2)),
        ([0, 1, 2], ShardDegrees(tensor=2)),
        ([1, 1], ShardDegrees(data=2)),
    ]
    return [
        error_of(lambda ranks=ranks, degrees=degrees: RoleMesh.create(ranks, degrees))
        for ranks, degrees in wrong
    ]


def test_what_cannot_be_is_refused_before_a_group_is_made(process_pool: ProcessPool):
    for pipeline, too_many, twice in process_pool.run(refusals):
        assert "2 pipeline stages" in pipeline
        assert "These degrees need 2 processes" in too_many
        assert "each once" in twice


@pytest.mark.parametrize(
    ("degrees", "text"),
    [
        ({"tensor": 0}, "at least 1"),
        ({"zero_stage": 4}, "0, 1, 2 or 3"),
        ({"data": 4, "shard_replicas": 3}, "blocks of 3 of 4"),
    ],
)
def test_degrees_out_of_range_are_refused(degrees: dict[str, Any], text: str):
    assert text in error_of(lambda: ShardDegrees(**degrees))
