"""The log of a run: this package's messages in a file of the run folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flexrlhf.runtime.run_folder import write_failure


class _LogFile(logging.FileHandler):
    """A file that may lack lines where the disk is full; the run itself says so."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Leaves out a line that cannot be written."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Sends this package's messages to `log.txt` until the block ends, errors included.

    Warnings also go to standard error; an error reaches the user as the exception itself.

    Raises:
        RunFailed: the file cannot be opened.
    """
    logger = logging.getLogger("flexrlhf")
    try:
        handler = _LogFile(folder / "log.txt")
    except OSError as error:
        raise write_failure(folder / "log.txt", error) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    console = logging.StreamHandler()
    console.addFilter(lambda record: record.levelno == logging.WARNING)
    console.setFormatter(logging.Formatter("warning: %(message)s"))
    is_outermost = not logger.handlers
    logger.addHandler(handler)
    if is_outermost:
        logger.addHandler(console)
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        logger.exception("the run stopped")
        raise
    finally:
        logger.removeHandler(handler)
        logger.removeHandler(console)
        with suppress(OSError):
            handler.close()
