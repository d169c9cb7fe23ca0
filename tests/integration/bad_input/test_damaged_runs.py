"""Run folders with damaged files: gone on with where that is safe, else said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import flexrlhf


@pytest.fixture(scope="module")
def finished(changed, tmp_path_factory) -> tuple[Path, Path]:
    """A config and the folder of its run of three iterations, with a checkpoint at the second."""
    folder = tmp_path_factory.mktemp("finished")
    content = changed("grpo", {"training.iterations": 3})
    (folder / "run.yaml").write_text(json.dumps(content))
    flexrlhf.train(flexrlhf.load_config(folder / "run.yaml"), run_dir=folder / "run")
    return folder / "run.yaml", folder / "run"


@pytest.fixture
def interrupted(finished, tmp_path) -> Path:
    """A copy of the run folder as after an interrupt in the third iteration."""
    folder = Path(shutil.copytree(finished[1], tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints" / "iteration-3")
    shutil.rmtree(folder / "model")
    return folder


@pytest.mark.parametrize("file", ["timeline.json", "metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe\n5\n{}\n"])
def test_a_damaged_record_stops_no_resumed_run(
    command, finished, interrupted, weights, file, damage
):
    config, expected = finished
    (interrupted / file).write_bytes(damage)
    status, _, err = command("train", config, "--run-dir", interrupted, "--resume")
    assert status == 0
    assert "grpo: 3 iterations, 2 finished" in err
    found = weights(interrupted)
    for name, tensor in weights(expected).items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("run.json", b"[]"),
        ("run.json", b'{"format": 1, "iteration": 2, "worker": {"kl": {}}}'),
        ("random.json", b'{"python": 5, "numpy": 6}'),
        ("random.safetensors", b""),
        ("actor/weights.safetensors", b"\x08"),
        ("actor/optimizer.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
        ("actor/optimizer.json", b"{}"),
    ],
)
def test_a_damaged_checkpoint_is_never_taken_for_a_whole_one(
    failed, command, finished, interrupted, file, damage
):
    """The second optimizer.safetensors is a whole file without tensors: a fresh optimiser."""
    checkpoint = interrupted / "checkpoints" / "iteration-2"
    (checkpoint / file).write_bytes(damage)
    arguments = ("train", finished[0], "--run-dir", interrupted, "--resume")
    err = failed(*arguments)
    assert err.startswith("CheckpointError")
    assert re.search(r"[Dd]elete", err)
    shutil.rmtree(checkpoint)
    assert command(*arguments)[0] == 0


@pytest.mark.parametrize("damage", [b"", b"- a\n", b"\xff\xfe", b"algorithm: {name: grpo"])
def test_a_run_whose_config_is_damaged_is_not_resumed(refused, finished, interrupted, damage):
    before = {path.name for path in interrupted.iterdir()}
    (interrupted / "config.yaml").write_bytes(damage)
    err = refused("train", finished[0], "--run-dir", interrupted, "--resume")
    assert "config.yaml" in err
    assert {path.name for path in interrupted.iterdir()} == before
