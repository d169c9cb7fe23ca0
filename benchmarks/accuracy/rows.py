"""The published measurements, grouped as the accuracy page judges them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.prediction import Predicted, predict_row
from flexrlhf.planning.cases.setting import setting_of
from flexrlhf.planning.costs.calibration import Calibration

PUBLISHED: Final = Path(__file__).parents[1] / "published" / "published_throughput.csv"
NOT_FITTED: Final = (
    "peak_memory",
    "max_batch_samples",
    "generation_wait_time",
    "overhead_time",
    "fits",
)
"""Metrics of memory, and differences of times, whose logarithms say little."""
RATES: Final = ("samples_per_s",)
"""Metrics whose quotients inside a source are fitted where its numbers alone are not sound."""
_CONFIGURATION: Final = (
    "gpu",
    "n_gpus",
    "actor_model",
    "critic_model",
    "reward_model",
    "prompt_tokens_max",
    "response_tokens_max",
    "prompts_per_iteration",
    "samples_per_prompt",
)
"""Columns that make a configuration; all systems on it are left out together. Totals that were
measured, such as a mean length, are no part of it."""


@dataclass(frozen=True)
class Measured:
    """One row with a measured number."""

    line: int
    row: Mapping[str, str]
    class_name: str

    @property
    def identity(self) -> str:
        """The row's name."""
        return self.row["id"]

    @property
    def value(self) -> float:
        """What was measured."""
        return float(self.row["value"])

    @property
    def is_ratio(self) -> bool:
        """Whether it is sound only beside rows of its own source."""
        return "compare=ratio" in self.row["variant"]

    @property
    def is_fitted(self) -> bool:
        """Whether the constants of its class are fitted to it."""
        metric = self.row["metric"]
        if metric in NOT_FITTED or self.value <= 0 or self._has_unknown_split:
            return False
        return not self.is_ratio or metric in RATES

    @property
    def _has_unknown_split(self) -> bool:
        """Whether roles have devices of their own, but which is not stated.

        Such times say nothing about the hardware; they are judged, not fitted.
        """
        is_split = self.row["strategy"] == "split" and not self.row["n_gpus_train"]
        return is_split and self.row["metric"] != "weight_sync_time"

    @property
    def source(self) -> str:
        """The prefix of its name: one document."""
        return self.identity.rsplit("-", 1)[0]

    @property
    def configuration(self) -> tuple[str, ...]:
        """What is left out together."""
        return tuple(self.row[column] for column in _CONFIGURATION)

    def predicted(self, calibration: Calibration | None = None) -> Predicted:
        """Returns the answer to it."""
        return predict_row(self.row, self.line, calibration=calibration)

    def log_error(self, calibration: Calibration | None = None) -> float:
        """Returns the logarithm of predicted over measured."""
        answer = self.predicted(calibration).value
        assert answer is not None
        return math.log(max(answer, 1e-9) / self.value)


def measured_rows(path: Path = PUBLISHED) -> list[Measured]:
    """Returns all rows of kind `measure`."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Measured(line, row, _class_of(row, line))
            for line, row in enumerate(csv.DictReader(file), start=2)
            if row["kind"] == "measure"
        ]


def _class_of(row: Mapping[str, str], line: int) -> str:
    return setting_of(case_of(row, line), Assumptions()).request.calibration.name
