"""Scores of a split role are those of one process, also where a replica has nothing to score."""

from __future__ import annotations

from typing import Any

import pytest
from process_pool import ProcessPool
from role_cases import make_model, make_samples, mesh_of

from flexrlhf.learning.models.parallelise import parallelise
from flexrlhf.learning.models.role_mesh import ShardDegrees
from flexrlhf.learning.scoring.passes import (
    score_logprobs,
    score_rewards,
    score_shared,
    score_values,
)

LAYOUTS: dict[str, dict[str, Any]] = {
    "zero0": {"data": 2},
    "zero2, frozen whole": {"data": 2, "zero_stage": 2},
    "zero3": {"data": 2, "zero_stage": 3},
    "zero3 in host memory": {"data": 2, "zero_stage": 3, "offload": True},
    "tp2": {"tensor": 2},
    "tp2 x zero3": {"tensor": 2, "data": 2, "zero_stage": 3},
    "pp2": {"pipeline": 2},
    "pp2 x zero0": {"pipeline": 2, "data": 2},
    "pp2 x tp2": {"pipeline": 2, "tensor": 2},
}


def all_scores(models: dict[str, Any], samples: list[Any]) -> dict[str, Any]:
    """Returns every kind of score of the samples as lists of numbers."""
    logprobs = score_logprobs(models["policy"], samples, temperature=0.7, max_tokens=20)
    values = score_values(models["scorer"], samples, max_tokens=20)
    shared = score_shared(models["shared"], samples, temperature=0.7, max_tokens=20)
    return {
        "logprobs": [row.tolist() for row in logprobs],
        "values": [row.tolist() for row in values],
        "shared logprobs": [row.tolist() for row in shared[0]],
        "shared values": [row.tolist() for row in shared[1]],
        "rewards": score_rewards(models["scorer"], samples, max_tokens=20),
    }


def score_split(degrees: dict[str, Any], *, cut: list[int]) -> dict[str, Any] | None:
    """Scores the samples of this replica, from `cut[replica]` to `cut[replica + 1]`."""
    degree = ShardDegrees(**degrees)
    mesh = mesh_of(tuple(range(degree.size)), degree)
    if not mesh.is_member:
        return None
    kinds = ("policy", "scorer", "shared")
    models = {kind: parallelise(make_model(kind), mesh, trains=False) for kind in kinds}
    own = make_samples()[slice(cut[mesh.replica], cut[mesh.replica + 1])]
    return all_scores(models, own)


CASES = [
    ("zero0", [0, 5, 7]),
    ("zero2, frozen whole", [0, 5, 7]),
    ("zero3", [0, 5, 7]),
    ("zero3", [0, 7, 7]),
    ("zero3 in host memory", [0, 5, 7]),
    ("tp2", [0, 7]),
    ("tp2 x zero3", [0, 0, 7]),
    ("pp2", [0, 7]),
    ("pp2 x zero0", [0, 7, 7]),
    ("pp2 x tp2", [0, 7]),
]


@pytest.mark.parametrize(("layout", "cut"), CASES)
def test_scores_are_those_of_one_process(process_pool: ProcessPool, layout: str, cut: list[int]):
    degrees = LAYOUTS[layout]
    expected = all_scores(
        {kind: make_model(kind) for kind in ("policy", "scorer", "shared")}, make_samples()
    )
    for rank, result in enumerate(process_pool.run(score_split, degrees=degrees, cut=cut)):
        if result is None:
            continue
        replica = rank // degrees.get("tensor", 1) % degrees.get("data", 1)
        part = slice(cut[replica], cut[replica + 1])
        for name, rows in expected.items():
            assert len(result[name]) == len(rows[part])
            for ours, theirs in zip(result[name], rows[part], strict=True):
                assert ours == pytest.approx(theirs, rel=0, abs=1e-11)
