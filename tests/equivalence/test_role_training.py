"""A role trains alike on one process and on 2 or 4, however it is split: in float64 to 1e-9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from process_pool import ProcessPool
from role_cases import NUM_STEPS, SPLITS, alone, farthest, missing, split_trainer, train
from safetensors.torch import load_file, save_file

from flexrlhf.learning.models.role_mesh import ShardDegrees


def cases() -> list[Any]:
    """Every split with the policy, which has tied weights; some with the other models."""
    listed = [("policy", "llama", name, {"layers": 4} if name == "pp4" else {}) for name in SPLITS]
    listed += [("scorer", "llama", name, {}) for name in ("zero2", "tp2 x zero3")]
    listed += [("shared", "llama", name, {}) for name in ("zero1", "zero3")]
    listed += [("shared, policy only", "llama", name, {}) for name in ("zero0", "hybrid zero3")]
    listed += [("policy", "llama", name, {"offload": True}) for name in ("zero3", "tp2 x zero1")]
    listed += [
        ("shared", "llama", name, {"checkpointing": True}) for name in ("zero2", "tp2 x zero3")
    ]
    unordered = {"ranks": [3, 0, 2, 1]}
    listed += [("policy", "llama", name, unordered) for name in ("tp2 x zero1", "tp2 x zero3")]
    listed += [("policy", "gpt2", "zero3", {}), ("shared", "qwen3", "tp2 x zero3", {})]
    listed += [
        ("policy", "llama", "pp2 x zero1", {"layers": 3, "tied": False}),
        ("policy", "llama", "pp2 x zero0", {**unordered, "checkpointing": True}),
        ("policy", "llama", "pp2 x tp2", {"layers": 3, "offload": True}),
        ("policy", "gpt2", "pp4", {"layers": 4}),
        ("scorer", "llama", "pp2", {}),
        ("scorer", "gpt2", "pp2 x zero0", {}),
        ("shared", "qwen3", "pp2 x tp2", {}),
        ("shared, policy only", "llama", "pp2 x zero1", {}),
    ]
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


def num_bytes(weights: dict[str, torch.Tensor], *, tied_twice: bool = False) -> int:
    if tied_twice:  # at either end of a pipeline
        return sum(tensor.nbytes for tensor in weights.values())
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in weights.values()}.values())


COPIES = {
    "zero0": 2,
    "zero1": 1,
    "zero2": 1,
    "zero3": 1,
    "zero1 on 4": 1,
    "zero3 on 4": 1,
    "hybrid zero1": 2,
    "hybrid zero2": 2,
    "hybrid zero3": 2,
    "pp2": 1,
    "pp4": 1,
    "pp2 x zero0": 2,
    "pp2 x zero1": 1,
}
"""How often the role has the optimiser's moments."""


@pytest.mark.parametrize(("kind", "family", "split", "options"), cases())
def test_losses_norms_and_weights_are_those_of_one_process(
    process_pool: ProcessPool,
    tmp_path: Path,
    kind: str,
    family: str,
    split: str,
    options: dict[str, Any],
):
    form = {key: options[key] for key in ("layers", "tied") if key in options}
    metrics, weights = alone(kind, family, **form)
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
    moments = sum(result["moments"] for result in members)
    assert moments >= 2 * num_bytes(weights)
    if "tensor" not in degrees:  # it holds some weights twice
        held = num_bytes(weights, tied_twice="pipeline" in degrees)
        assert moments == 2 * held * COPIES[split]
    assert not missing([result["boxes"] for result in members], weights)
    for result in members:
        assert result["metrics"] == members[0]["metrics"]
        assert result["error"] < 1e-9
        for ours, theirs in zip(result["metrics"], metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


def train_in_float32(degrees: dict[str, Any]) -> list[dict[str, float]] | None:
    made = split_trainer("shared", "llama", degrees, dtype="float32")
    return None if made is None else train(made[0], num_steps=NUM_STEPS)


@pytest.mark.parametrize("split", ["zero2", "hybrid zero3"])
def test_float32_differs_by_its_rounding(process_pool: ProcessPool, split: str):
    metrics, _ = alone("shared", "llama")
    results = process_pool.run(train_in_float32, degrees=SPLITS[split])
    for ours, theirs in zip(results[0], metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5)
