"""Metrics as TensorBoard event files."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

# protobuf makes the classes of these modules at their import, where no checker of types sees them.
_EVENTS: Any = event_pb2
_SUMMARIES: Any = summary_pb2


class TensorBoardTracker:
    """Writes every metric as a scalar under `RUN_DIR/tensorboard`.

    Straight into the file, and not through TensorBoard's own writer, whose thread prints a
    traceback of its own when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: RecordWriter | None = None

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration.

        Raises:
            OSError: the disk is full, or does not take the file for another reason.
        """
        if self._writer is None:
            self._writer = self._begun(iteration)
        scalars = [
            _SUMMARIES.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()
        ]
        _add(self._writer, _EVENTS.Event(step=iteration, summary=_SUMMARIES.Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        """Lets go."""
        if self._writer is not None:
            self._writer.close()

    def _begun(self, iteration: int) -> RecordWriter:
        """Returns a new file; what an interrupted run wrote from `iteration` on is void."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        writer = RecordWriter((self._folder / name).open("wb"))
        _add(writer, _EVENTS.Event(file_version="brain.Event:2"))
        void = _EVENTS.SessionLog(status=_EVENTS.SessionLog.START)
        _add(writer, _EVENTS.Event(step=iteration, session_log=void))
        return writer


def _add(writer: RecordWriter, event: Any) -> None:
    event.wall_time = time.time()
    writer.write(event.SerializeToString())
