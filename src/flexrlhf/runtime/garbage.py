"""Garbage collections that do not look through everything again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_apart() -> Iterator[None]:
    """Keeps what exists when it begins out of garbage collections until it ends.

    A full collection stops a process that has imported torch, transformers and Ray for a tenth of a
    second or two, in which a driver starts no task. It is made once, here, and from then on only
    what a loop makes itself is looked through. The setting is the process's: where several loops
    run at once it ends with the first of them.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
