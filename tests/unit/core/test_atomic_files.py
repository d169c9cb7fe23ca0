from __future__ import annotations

import os

import pytest

from flexrlhf.core.atomic_files import atomic_folder, write_atomically


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("one\n", "zwei ✓"):
        write_atomically(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    (tmp_path / f".a.txt.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new" * 10_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_fails_leaves_what_was_there(tmp_path):
    folder = tmp_path / "model"
    with atomic_folder(folder) as workplace:
        (workplace / "old").touch()
    with pytest.raises(FileNotFoundError), atomic_folder(folder) as workplace:
        (workplace / "new" / "in a folder that is not there").touch()
    assert [path.name for path in folder.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_another_wrote_meanwhile_stays(tmp_path):
    folder = tmp_path / "model"
    with atomic_folder(folder, replace=False) as workplace:
        (workplace / "ours").touch()
        folder.mkdir()
        (folder / "theirs").touch()
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
