"""Places that can be no run folder, folders of others, and disks that are full."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount cannot be run: {error}")
    if mounted.returncode:
        pytest.skip(f"this user may mount nothing: {mounted.stderr.strip()}")
    yield folder
    # A resumed optimiser reads its state from the mapped file as long as it lives.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


FILLING = """
import os

count = 0


def score(completions, **columns):
    global count
    count += 1
    if count == 4 and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        file = os.open({file!r}, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(file, b"x" * 512)
        except OSError:
            os.close(file)
    return [float(len(text)) for text in completions]
"""


def test_a_disk_that_fills_up_costs_only_what_was_not_finished(
    changed, failed, command, disk, tmp_path
):
    code = FILLING.format(file=str(disk / "others"), marker=str(tmp_path / "filled"))
    (tmp_path / "filling.py").write_text(code)
    keys = {"reward.functions": [{"path": "filling.py:score"}], "training.iterations": 5}
    (tmp_path / "run.yaml").write_text(json.dumps(changed("ppo", keys)))
    arguments = ("train", tmp_path / "run.yaml", "--run-dir", disk / "run")
    err = failed(*arguments)
    assert "No space left on device" in err
    assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["iteration-2"]
    (disk / "others").unlink()
    status, _, err = command(*arguments, "--resume")
    assert "4 iterations" not in err
    assert (disk / "run" / "checkpoints" / "iteration-5").is_dir()
    assert (disk / "run" / "model" / "actor").is_dir()
    # The page alone is larger than the disk; the run itself is finished.
    assert status == 1
    assert "The report of" in err
    assert "flexrlhf report" in err


def test_a_read_only_disk_starts_nothing(refused, config_file, document, disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for run_dir in (disk, disk / "run"):
        path = config_file(document("sft"))
        assert "Read-only file system" in refused("train", path, "--run-dir", run_dir)


@pytest.mark.parametrize("place", ["run.yaml", "run.yaml/run", "/proc/run", "/dev/null", "x" * 300])
def test_a_place_that_can_be_no_run_folder(refused, config_file, document, tmp_path, place):
    refused("train", config_file(document("sft")), "--run-dir", tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(("limit", "what"), [(2_000, "checkpoints"), (1_000_000, "report")])
def test_a_disk_that_is_full_stops_the_run(
    failed, command, config_file, document, tmp_path, limit, what
):
    """A limit on the size of files stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = ("train", config_file(document("grpo")), "--run-dir", tmp_path / "run")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        err = failed(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in err
    assert what in err
    assert command(*arguments, "--resume")[0] == 0


def test_a_run_folder_with_contents_is_refused(refused, config_file, document, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    err = refused("train", config_file(document("sft")), "--run-dir", tmp_path / "run")
    assert "not empty" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
