"""What was generated ahead, in the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flexrlhf.core.errors import CheckpointError
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.runtime.devices.saved_experience import load_experience, save_experience

PLACES = {"generate": [1, 2], "parts": [4], "reward": [3]}
STATE = Parcel({"made": [[3, 0, 2]]}, {"samples/tokens": torch.arange(4)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_experience(tmp_path, 2, STATE, PLACES)
    return tmp_path


def test_a_worker_reads_what_it_wrote(folder: Path):
    found = load_experience(folder, 2, PLACES)
    assert found.header == STATE.header
    assert torch.equal(found.tensors["samples/tokens"], torch.arange(4))
    assert {path.suffix for path in (folder / "experience").iterdir()} == {".json", ".safetensors"}


def test_another_placement_is_refused(folder: Path):
    with pytest.raises(CheckpointError, match="Resume under the placement of the first part"):
        load_experience(folder, 2, {**PLACES, "reward": [2]})


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("[1]")])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_missing_or_damaged_file_says_what_to_do(folder: Path, suffix: str, damage):
    damage(folder / "experience" / f"worker-2{suffix}")
    with pytest.raises(CheckpointError, match=r"worker-2\.json cannot be read") as caught:
        load_experience(folder, 2, PLACES)
    assert f"Delete {folder}" in caught.value.do


def test_what_a_worker_did_not_write_is_missing(folder: Path):
    with pytest.raises(CheckpointError, match=r"worker-1\.json cannot be read"):
        load_experience(folder, 1, PLACES)
