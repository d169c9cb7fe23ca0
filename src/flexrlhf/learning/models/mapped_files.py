"""Memory of tensors that lie in files mapped into memory.

A page of a file that was read counts as memory of the process until it is given back, and what
loads a model gives back no page before it has read all of them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from torch import Tensor

_MAPS: Final = Path("/proc/self/maps")
_DONT_NEED: Final = 4
"""MADV_DONTNEED of Linux: pages are given back, and read from the file again when needed."""


class MappedFiles:
    """The files that are mapped into this process now; none where the system does not tell."""

    def __init__(self) -> None:
        self._ranges = [] if _give_back() is None else _file_ranges()

    def give_back(self, tensor: Tensor) -> None:
        """Gives back the pages that hold this tensor alone, if it lies in one piece in such a file.

        The tensor then has the numbers of the file again, without what was written over them.
        Tensors that lie elsewhere are left alone.
        """
        if not tensor.is_contiguous():
            return
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        if any(begin <= first and last <= end for begin, end in self._ranges):
            first_page = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
            num_bytes = last // mmap.PAGESIZE * mmap.PAGESIZE - first_page
            madvise = _give_back()
            if num_bytes > 0 and madvise is not None:
                madvise(first_page, num_bytes, _DONT_NEED)  # advice: a refusal changes nothing


def _file_ranges() -> list[tuple[int, int]]:
    """Returns the first address of each mapped file and the one behind its last."""
    ranges: list[tuple[int, int]] = []
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, _, _, _, inode, *path = line.split(maxsplit=5)
        # Devices such as /dev/zero are mapped to have memory, which has no file behind it.
        if inode != "0" and path and not path[0].startswith("/dev/"):
            begin, end = addresses.split("-")
            ranges.append((int(begin, 16), int(end, 16)))
    return ranges


@cache
def _give_back() -> Callable[[int, int, int], int] | None:
    """Returns madvise of the C library on Linux."""
    if not _MAPS.exists():
        return None
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return madvise
