"""Folders that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """Gives a folder to write into, which becomes `folder` when the block ends without an error.

    Everything is on the disk before the rename. A folder that exists is replaced: between two
    renames it is absent for a moment, and whole under a hidden sibling's name. With `replace`
    off it stays, for folders whose content is the same whoever writes them.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    new, old = workplace / "new", workplace / "old"
    try:
        new.mkdir()
        yield new
        _flush(new)
        if replace and folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError as error:
            if replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _flush_entry(folder.parent)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(workplace)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        _flush_entry(path)
    _flush_entry(folder)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
