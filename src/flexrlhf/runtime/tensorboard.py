"""Metrics as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorBoardTracker:
    """Writes every metric as a scalar under `RUN_DIR/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Flushes and lets go."""
        self._writer.close()
