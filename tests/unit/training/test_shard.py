"""Shards come back bit for bit, and damaged ones say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flexrlhf.core.errors import CheckpointError
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings

SETTINGS = OptimizerSettings(0.01, total_steps=20, schedule="linear", weight_decay=0.1)


def take_steps(backend: OneDeviceBackend, first: int, count: int) -> list[float]:
    """Steps on seeded gradients; returns the learning rates used."""
    rates = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        terms = [
            (p * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)).sum()
            for p in backend.model.parameters()
        ]
        backend.backward(torch.stack(terms).sum())
        rates.append(backend.step().learning_rate)
    return rates


def assert_identical(one: OneDeviceBackend, other: OneDeviceBackend) -> None:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    for p, q in pairs:
        state, expected = one._optimizer.state[p], other._optimizer.state[q]
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(state[name], value)
            assert state[name].dtype == value.dtype


@pytest.mark.parametrize("kind", ["policy", "scorer", "shared"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_was_saved_comes_back_bit_for_bit(make_model, tmp_path: Path, kind: str, dtype: str):
    trained = OneDeviceBackend(make_model(kind, dtype=dtype), SETTINGS)
    take_steps(trained, 0, 3)
    trained.save_shard(tmp_path)
    restored = OneDeviceBackend(make_model(kind, dtype=dtype, seed=9), SETTINGS)
    take_steps(restored, 50, 1)  # what it held before must not show
    restored.load_shard(tmp_path)
    assert_identical(restored, trained)
    assert take_steps(restored, 3, 2) == take_steps(trained, 3, 2)
    assert_identical(restored, trained)


def test_saving_changes_nothing(make_model, tmp_path: Path):
    saving, other = (OneDeviceBackend(make_model(), SETTINGS) for _ in range(2))
    for step in range(3):
        take_steps(saving, step, 1)
        saving.save_shard(tmp_path / str(step))
        take_steps(other, step, 1)
    assert_identical(saving, other)


def test_tied_weights_are_saved_once_and_stay_tied(make_model, tmp_path: Path):
    trained = OneDeviceBackend(make_model(), SETTINGS)
    take_steps(trained, 0, 1)
    trained.save_shard(tmp_path)
    model = make_model(seed=4)
    restored = OneDeviceBackend(model, SETTINGS)
    restored.load_shard(tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    take_steps(restored, 1, 1)
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    numbers = sum(p.numel() for p in model.parameters())
    assert (tmp_path / "weights.safetensors").stat().st_size < 8 * numbers + 8192


def test_a_shard_from_before_the_first_step(make_model, tmp_path: Path):
    fresh = OneDeviceBackend(make_model(), SETTINGS)
    fresh.save_shard(tmp_path)
    restored = OneDeviceBackend(make_model(seed=5), SETTINGS)
    take_steps(restored, 0, 2)
    restored.load_shard(tmp_path)
    assert take_steps(restored, 0, 2) == take_steps(fresh, 0, 2)
    assert_identical(restored, fresh)


def test_buffers_are_saved_too(tmp_path: Path):
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    OneDeviceBackend(model, SETTINGS).save_shard(tmp_path)
    OneDeviceBackend(other, SETTINGS).load_shard(tmp_path)
    assert torch.equal(other.running_mean, model.running_mean)
    assert other.num_batches_tracked == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00 no such thing " * 8)


FILES = ("weights.safetensors", "optimizer.safetensors", "optimizer.json")


@pytest.mark.parametrize("damage", [Path.unlink, cut, overwrite])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file(make_model, tmp_path: Path, file: str, damage):
    backend = OneDeviceBackend(make_model(), SETTINGS)
    take_steps(backend, 0, 1)
    backend.save_shard(tmp_path)
    damage(tmp_path / file)
    with pytest.raises(CheckpointError, match=str(tmp_path)) as caught:
        OneDeviceBackend(make_model(), SETTINGS).load_shard(tmp_path)
    assert caught.value.do


@pytest.mark.parametrize("document", [{}, [], {"step": "many", "scalars": {}}, {"step": 3}])
def test_a_step_count_that_is_none(make_model, tmp_path: Path, document):
    OneDeviceBackend(make_model(), SETTINGS).save_shard(tmp_path)
    (tmp_path / "optimizer.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        OneDeviceBackend(make_model(), SETTINGS).load_shard(tmp_path)


@pytest.mark.parametrize("other", [{"width": 24}, {"kind": "scorer"}, {"kind": "shared"}])
def test_a_shard_of_another_architecture(make_model, tmp_path: Path, other):
    backend = OneDeviceBackend(make_model(**other), SETTINGS)
    take_steps(backend, 0, 1)
    backend.save_shard(tmp_path)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
        OneDeviceBackend(make_model(), SETTINGS).load_shard(tmp_path)


def test_an_optimiser_of_another_architecture(make_model, tmp_path: Path):
    for name, kind in (("mine", "policy"), ("other", "shared")):
        backend = OneDeviceBackend(make_model(kind), SETTINGS)
        take_steps(backend, 0, 1)
        backend.save_shard(tmp_path / name)
    for file in ("optimizer.safetensors", "optimizer.json"):
        (tmp_path / "other" / file).replace(tmp_path / "mine" / file)
    with pytest.raises(CheckpointError, match="does not have"):
        OneDeviceBackend(make_model(), SETTINGS).load_shard(tmp_path / "mine")


@pytest.mark.parametrize("tensors", ["none", "other shapes", "other names"])
def test_an_optimiser_without_its_tensors_is_no_fresh_optimiser(
    make_model, tmp_path: Path, tensors: str
):
    backend = OneDeviceBackend(make_model(), SETTINGS)
    take_steps(backend, 0, 1)
    backend.save_shard(tmp_path)
    file = tmp_path / "optimizer.safetensors"
    saved = load_file(file)
    changed = {
        "none": {},
        "other shapes": {name: torch.zeros(3) for name in saved},
        "other names": {name.replace(":", ""): tensor for name, tensor in saved.items()},
    }
    save_file(changed[tensors], file)
    with pytest.raises(CheckpointError, match="not those that were saved"):
        OneDeviceBackend(make_model(), SETTINGS).load_shard(tmp_path)
