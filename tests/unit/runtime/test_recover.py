"""Checkpoints appear whole or not at all, and bring back everything that they hold."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flexrlhf.core.errors import CheckpointError, RunFailed
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.runtime import recover
from flexrlhf.runtime.recover import CheckpointStore, seed_random_states


def write_role(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "weights").write_text("w")


def save(store: CheckpointStore, iteration: int, **state) -> Path:
    return store.save(iteration, write_role, state, num_bytes=1000)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, keep=2)


def test_a_checkpoint_holds_roles_and_state(store, folder):
    path = save(store, 7, worker={"kl": {"coefficient": 0.25}})
    assert path == folder / "iteration-7"
    assert (path / "actor" / "weights").read_text() == "w"
    loaded = []
    assert store.load(loaded.append) == {
        "format": 1,
        "iteration": 7,
        "worker": {"kl": {"coefficient": 0.25}},
    }
    assert loaded == [path]


def test_without_a_checkpoint_there_is_nothing_to_load(store):
    assert store.newest() is None
    assert store.load(lambda folder: pytest.fail("nothing to load")) is None


def test_the_newest_is_that_of_the_highest_iteration(store, folder):
    for iteration in (9, 10, 100):
        save(store, iteration)
    assert store.newest() == folder / "iteration-100"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(folder, keep):
    store = CheckpointStore(folder, keep=keep)
    for iteration in (5, 10, 15, 20):
        save(store, iteration)
    assert names(folder) == sorted(f"iteration-{n}" for n in (5, 10, 15, 20)[-keep:])


def test_a_checkpoint_that_is_half_removed_is_not_taken_for_one(store, folder, monkeypatch):
    """As after a kill in the middle of the removal of an old one."""
    for iteration in (1, 2):
        save(store, iteration)

    def killed(path: Path) -> None:
        (path / "run.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            recover, "shutil", SimpleNamespace(rmtree=killed, disk_usage=shutil.disk_usage)
        )
        with pytest.raises(KeyboardInterrupt):
            save(store, 3)
    assert (folder / ".iteration-1" / "actor").is_dir()
    assert store.newest() == folder / "iteration-3"
    for name in ("iteration-2", "iteration-3"):
        shutil.rmtree(folder / name)
    assert store.newest() is None
    assert store.finished == 0


def test_the_generators_of_all_libraries_go_on_where_they_were(store):
    seed_random_states(3)
    draws()
    save(store, 1)
    expected = [draws() for _ in range(3)]
    seed_random_states(4)
    assert draws() != expected[0]
    store.load(lambda folder: None)
    assert [draws() for _ in range(3)] == expected


def test_a_seed_gives_the_same_draws():
    for seed in (0, 1 << 40):
        seed_random_states(seed)
        expected = draws()
        seed_random_states(seed)
        assert draws() == expected


def test_an_interrupted_save_leaves_nothing_under_the_name_of_a_checkpoint(store, folder):
    save(store, 1)

    def interrupted(partial: Path) -> None:
        write_role(partial)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(2, interrupted, {}, num_bytes=1000)
    assert names(folder) == ["iteration-1"]


def test_a_torn_folder_is_no_checkpoint(store, folder):
    """A killed process leaves its hidden folder."""
    save(store, 1)
    torn = folder / ".iteration-2-x1y2" / "new"
    torn.mkdir(parents=True)
    write_role(torn)
    assert store.newest() == folder / "iteration-1"
    assert store.load(lambda folder: None)["iteration"] == 1


def test_what_a_killed_process_did_not_remove_goes_at_the_next_start(store, folder):
    for iteration in (1, 2):
        save(store, iteration)
    save(CheckpointStore(folder, keep=3), 3)
    store.load(lambda folder: None)
    assert names(folder) == ["iteration-2", "iteration-3"]


def test_a_copy_that_a_user_made_is_left_alone(store, folder):
    save(store, 1)
    shutil.copytree(folder / "iteration-1", folder / "iteration-1-copy")
    save(store, 2)
    save(store, 3)
    assert names(folder) == ["iteration-1-copy", "iteration-2", "iteration-3"]
    assert store.newest() == folder / "iteration-3"


def test_another_format(store, folder):
    save(store, 1)
    (folder / "iteration-1" / "run.json").write_text(json.dumps({"format": 99, "iteration": 1}))
    with pytest.raises(CheckpointError, match="checkpoint format 99"):
        store.load(lambda folder: pytest.fail("must not be loaded"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff\xfe nothing of the kind")


@pytest.mark.parametrize("damage", [Path.unlink, cut, overwrite])
@pytest.mark.parametrize("file", ["run.json", "random.json", "random.safetensors"])
def test_a_damaged_checkpoint_says_so(store, folder, file, damage):
    save(store, 1)
    damage(folder / "iteration-1" / file)
    with pytest.raises(CheckpointError, match=r"iteration-1\b") as caught:
        store.load(lambda folder: None)
    assert str(folder / "iteration-1") in caught.value.do


def test_a_full_disk_is_noticed_before_anything_is_written(store, folder, monkeypatch):
    save(store, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000_000))
    with pytest.raises(RunFailed, match=r"needs 11\.55 MB in .*, 10\.00 MB are free") as caught:
        store.save(2, write_role, {}, num_bytes=10_000_000)
    assert "--resume" in caught.value.do
    assert names(folder) == ["iteration-1"]
    store.save(2, write_role, {}, num_bytes=1_000_000)
    assert names(folder) == ["iteration-1", "iteration-2"]


def test_a_disk_that_fills_up_while_a_role_is_written(small_disk):
    folder = small_disk / "checkpoints"
    store = CheckpointStore(folder, keep=2)
    save(store, 1)
    before = {p: p.read_bytes() for p in (folder / "iteration-1").rglob("*") if p.is_file()}
    backend = OneDeviceBackend(nn.Linear(1000, 1000), OptimizerSettings(0.1, 1))
    with pytest.raises(RunFailed, match=r"failed: .*No space left") as caught:
        store.save(2, lambda partial: backend.save_shard(partial / "actor"), {}, num_bytes=0)
    assert "--resume" in caught.value.do
    assert names(folder) == ["iteration-1"]
    assert all(path.read_bytes() == content for path, content in before.items())
    save(store, 3)
    assert names(folder) == ["iteration-1", "iteration-3"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(RunFailed, match="failed"):
        save(CheckpointStore(tmp_path / "checkpoints", keep=1), 1)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", b"[]"),
        ("run.json", b"5"),
        ("run.json", b"\xff"),
        ("run.json", b"{}"),
        ("run.json", b'{"format": 1, "iteration": 2}'),
        ("run.json", b'{"format": 1, "iteration": "three"}'),
        ("random.json", b"[]"),
        ("random.json", b"{}"),
        ("random.json", b'{"python": 5, "numpy": 6}'),
        ("random.safetensors", b""),
    ],
)
def test_whatever_is_wrong_with_a_file_it_is_named(store, file, content):
    path = save(store, 3)
    (path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=file) as damaged:
        store.load(lambda _: None)
    assert f"Delete {path}" in damaged.value.do


def test_random_states_of_something_else_are_no_random_states(store):
    path = save(store, 3)
    save_file({"weights": torch.zeros(2)}, path / "random.safetensors")
    with pytest.raises(CheckpointError, match=r"random\.safetensors cannot be read"):
        store.load(lambda _: None)
