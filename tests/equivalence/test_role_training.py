"""A role trains alike on one process and on 2 or 4, however it is split: in float64 to 1e-9."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from process_pool import ProcessPool
from role_cases import OBJECTIVES, SETTINGS, checkpointed, make_model, train
from safetensors.torch import load_file, save_file

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.parallel import ParallelBackend
from flexrlhf.learning.training.step import RoleTrainer

NUM_STEPS = 4

ZERO = {f"zero{stage}": {"data": 2, "zero_stage": stage} for stage in range(4)}
TENSOR = {"tp2": {"tensor": 2}}
FOUR = {
    "zero1 on 4": {"data": 4, "zero_stage": 1},
    "zero3 on 4": {"data": 4, "zero_stage": 3},
    "hybrid zero1": {"data": 4, "zero_stage": 1, "shard_replicas": 2},
    "hybrid zero2": {"data": 4, "zero_stage": 2, "shard_replicas": 2},
    "hybrid zero3": {"data": 4, "zero_stage": 3, "shard_replicas": 2},
    "tp2 x zero0": {"tensor": 2, "data": 2, "zero_stage": 0},
    "tp2 x zero1": {"tensor": 2, "data": 2, "zero_stage": 1},
    "tp2 x zero3": {"tensor": 2, "data": 2, "zero_stage": 3},
}
SPLITS: dict[str, dict[str, Any]] = {**ZERO, **TENSOR, **FOUR}


def cases() -> list[Any]:
    """Every split with the policy, which has tied weights; some with the other models."""
    listed = [("policy", "llama", name, {}) for name in SPLITS]
    for name in ("zero1", "zero2", "zero3", "tp2 x zero3"):
        listed += [("scorer", "llama", name, {}), ("shared", "llama", name, {})]
    for name in ("zero1", "zero3", "tp2 x zero1"):
        listed.append(("policy", "llama", name, {"offload": True}))
    for name in ("zero2", "zero3", "tp2 x zero3"):
        listed.append(("shared", "llama", name, {"checkpointing": True}))
    listed.append(("policy", "gpt2", "zero3", {}))
    listed.append(("shared", "qwen3", "tp2 x zero3", {}))
    return [pytest.param(*case, id="-".join(map(str, case))) for case in listed]


@cache
def alone(kind: str, family: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Returns metrics and final weights of one process."""
    model = make_model(kind, family=family)
    trainer = RoleTrainer("actor", OneDeviceBackend(model, SETTINGS), OBJECTIVES[kind])
    metrics = train(trainer, num_steps=NUM_STEPS, micro_batch=7)
    return metrics, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def split_trainer(
    kind: str, family: str, degrees: dict[str, Any], *, seed: int = 0, checkpointing: bool = False
) -> tuple[RoleTrainer, ParallelModel] | None:
    """Makes this rank's part of a role on the first ranks, or None."""
    gc.collect()
    degree = ShardDegrees(**degrees)
    mesh = RoleMesh.create(range(degree.size), degree, device_type="cpu")
    if not mesh.is_member:
        return None
    model = checkpointed(make_model(kind, family=family, seed=seed), checkpointing=checkpointing)
    parallel = parallelise(model, mesh, trains=True)
    backend = ParallelBackend(parallel, SETTINGS)
    return RoleTrainer("actor", backend, OBJECTIVES[kind]), parallel


def farthest(parallel: ParallelModel, expected: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns how far this rank's parts are from the whole weights, and how many it has."""
    errors, count = [0.0], 0
    for name, shard in parallel.shards().items():
        whole = expected[name]
        assert shard.shape == tuple(whole.shape), name
        expected_part = whole[shard.box.within(Box.whole(shard.shape))]
        errors.append((shard.tensor - expected_part).abs().max().item())
        count += shard.tensor.numel()
    return {"error": max(errors), "numbers": count}


def train_split(
    kind: str, family: str, degrees: dict[str, Any], *, checkpointing: bool, weights: str
) -> dict[str, Any] | None:
    made = split_trainer(kind, family, degrees, checkpointing=checkpointing)
    if made is None:
        return None
    trainer, parallel = made
    metrics = train(trainer, num_steps=NUM_STEPS)
    return {"metrics": metrics, **farthest(parallel, load_file(weights))}


@pytest.mark.parametrize(("kind", "family", "split", "options"), cases())
def test_losses_norms_and_weights_are_those_of_one_process(
    process_pool: ProcessPool, tmp_path: Path, kind: str, family: str, split: str, options: dict
):
    metrics, weights = alone(kind, family)
    file = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in weights.items()}, file)
    checkpointing = options.get("checkpointing", False)
    degrees = SPLITS[split] | {k: v for k, v in options.items() if k != "checkpointing"}
    results = process_pool.run(
        train_split,
        kind=kind,
        family=family,
        degrees=degrees,
        checkpointing=checkpointing,
        weights=str(file),
    )
    members = [result for result in results if result is not None]
    assert len(members) == ShardDegrees(**degrees).size
    for result in members:
        assert result["metrics"] == members[0]["metrics"]
        assert result["error"] < 1e-9
        for ours, theirs in zip(result["metrics"], metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
