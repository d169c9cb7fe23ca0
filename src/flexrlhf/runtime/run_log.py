"""The log of a run: this package's messages in a file of the run folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Sends this package's messages to `log.txt` until the block ends, errors included."""
    logger = logging.getLogger("flexrlhf")
    handler = logging.FileHandler(folder / "log.txt")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        logger.exception("the run stopped")
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()
