"""A role trains alike on one process and on 2 or 4, however it is split: in float64 to 1e-9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from process_pool import ProcessPool
from role_cases import NUM_STEPS, SPLITS, alone, farthest, missing, split_trainer, train
from safetensors.torch import load_file, save_file

from flexrlhf.learning.models.role_mesh import ShardDegrees


def cases() -> list[Any]:
    """Every split with the policy, which has tied weights; some with the other models."""
    listed = [("policy", "llama", name, {}) for name in SPLITS]
    for name in ("zero1", "zero2", "zero3", "tp2 x zero3"):
        listed += [("scorer", "llama", name, {}), ("shared", "llama", name, {})]
    for name in ("zero0", "hybrid zero1", "hybrid zero3"):
        listed.append(("shared, policy only", "llama", name, {}))
    for name in ("zero1", "zero3", "tp2 x zero1"):
        listed.append(("policy", "llama", name, {"offload": True}))
    for name in ("zero2", "zero3", "tp2 x zero3"):
        listed.append(("shared", "llama", name, {"checkpointing": True}))
    for name in ("tp2 x zero1", "tp2 x zero3"):
        listed.append(("policy", "llama", name, {"ranks": [3, 0, 2, 1]}))
    listed.append(("policy", "gpt2", "zero3", {}))
    listed.append(("shared", "qwen3", "tp2 x zero3", {}))
    return [pytest.param(*case, id="-".join(map(str, case))) for case in listed]


def train_split(
    kind: str, family: str, degrees: dict[str, Any], *, weights: str, options: dict[str, Any]
) -> dict[str, Any] | None:
    made = split_trainer(kind, family, degrees, **options)
    if made is None:
        return None
    trainer, parallel = made
    metrics = train(trainer, num_steps=NUM_STEPS)
    return {
        "metrics": metrics,
        "moments": trainer.backend.optimizer_bytes(),
        **farthest(parallel, load_file(weights)),
    }


@pytest.mark.parametrize(("kind", "family", "split", "options"), cases())
def test_losses_norms_and_weights_are_those_of_one_process(
    process_pool: ProcessPool,
    tmp_path: Path,
    kind: str,
    family: str,
    split: str,
    options: dict[str, Any],
):
    metrics, weights = alone(kind, family)
    options = dict(options)
    file = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in weights.items()}, file)
    degrees = SPLITS[split] | {"offload": options.pop("offload", False)}
    results = process_pool.run(
        train_split,
        kind=kind,
        family=family,
        degrees=degrees,
        weights=str(file),
        options=options,
    )
    members = [result for result in results if result is not None]
    assert len(members) == ShardDegrees(**degrees).size
    assert not missing([result["boxes"] for result in members], weights)
    for result in members:
        assert result["metrics"] == members[0]["metrics"]
        assert result["error"] < 1e-9
        for ours, theirs in zip(result["metrics"], metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("split", "copies"),
    [("zero0", 2), ("zero1", 1), ("zero2", 1), ("hybrid zero1", 2), ("hybrid zero3", 2)],
)
def test_moments_are_kept_as_often_as_the_zero_stage_says(
    process_pool: ProcessPool, tmp_path: Path, split: str, copies: int
):
    _, weights = alone("scorer", "llama")
    file = tmp_path / "weights.safetensors"
    save_file(weights, file)
    results = process_pool.run(
        train_split,
        kind="scorer",
        family="llama",
        degrees=SPLITS[split],
        weights=str(file),
        options={},
    )
    held = sum(result["moments"] for result in results if result)
    assert held == copies * 2 * sum(tensor.nbytes for tensor in weights.values())


def train_in_float32(degrees: dict[str, Any]) -> list[dict[str, float]] | None:
    made = split_trainer("shared", "llama", degrees, dtype="float32")
    return None if made is None else train(made[0], num_steps=NUM_STEPS)


@pytest.mark.parametrize("split", ["zero1", "zero2", "hybrid zero3"])
def test_float32_differs_by_its_rounding(process_pool: ProcessPool, split: str):
    metrics, _ = alone("shared", "llama")
    results = process_pool.run(train_in_float32, degrees=SPLITS[split])
    for ours, theirs in zip(results[0], metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5)
