"""What workers log, on its way into the log of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.errors import FlexError

_MOST_LINES: Final = 200
"""That a worker keeps between two reports."""
_PACKAGE: Final = "flexrlhf"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message."""

    level: int
    logger: str
    message: str


class WorkerLog(logging.Handler):
    """Keeps what a worker's process logs until it is reported.

    This package's messages are kept as in a run without workers, those of others from warnings on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=_MOST_LINES)

    def attach(self) -> None:
        """Begins to listen."""
        logging.captureWarnings(capture=True)
        logging.getLogger().addHandler(self)
        logging.getLogger(_PACKAGE).setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a message."""
        if record.levelno >= logging.WARNING or record.name.partition(".")[0] == _PACKAGE:
            self._lines.append(LogLine(record.levelno, record.name, self.format(record)))

    def take(self) -> tuple[LogLine, ...]:
        """Returns what was kept, once."""
        taken: list[LogLine] = []
        while self._lines:
            taken.append(self._lines.popleft())
        return tuple(taken)


class RelayedLog:
    """Writes what workers report into the log of the run; the same warning of several once."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(__name__)
        self._warned: set[str] = set()

    def write(self, rank: int, lines: Sequence[LogLine]) -> None:
        """Writes a worker's messages."""
        for line in lines:
            if line.level == logging.WARNING:
                if line.message in self._warned:
                    continue
                self._warned.add(line.message)
            self._logger.log(line.level, "worker %d: %s", rank, line.message)


def with_place(error: FlexError, place: str) -> FlexError:
    """Returns a worker's error with the place where it was raised."""
    return type(error)(f"{place}: {error.wrong}", error.right, error.do)
