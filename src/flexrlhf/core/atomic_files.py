"""Files and folders that appear under their name complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a UTF-8 file; a reader meets the old one or the new one, never half of one.

    Raises:
        OSError: the disk is full, or does not take the file for another reason; the old file stays.
    """
    if not path.name:  # of the current folder, or the root
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = True) -> Generator[Path]:
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
        for path in (*new.rglob("*"), new):
            _flush(path)
        if replace and folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError as error:
            if replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _flush(folder.parent)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(workplace)


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
