"""Metrics as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorBoardTracker:
    """Writes every metric as a scalar under `RUN_DIR/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: SummaryWriter | None = None

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration."""
        if self._writer is None:  # what an interrupted run wrote from here on no longer counts
            self._writer = SummaryWriter(log_dir=str(self._folder), purge_step=iteration)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Flushes and lets go."""
        if self._writer is not None:
            self._writer.close()
