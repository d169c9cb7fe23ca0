"""The pool of threads that OpenMP keeps for each thread that computes."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_PAUSE_HARD: Final = 2
"""`omp_pause_hard` of OpenMP 5.0: give everything up, make it anew when it is needed."""


def let_go() -> None:
    """Ends the pool of the calling thread, so that another one's pool has the cores to itself.

    With more threads alive than cores, libgomp lets each of them sleep at once where it would wait
    a moment for the next piece of work; many small operations then take up to twice as long.
    Nothing happens where the library is another one, or older.
    """
    if sys.platform == "win32":
        return
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(_PAUSE_HARD)
