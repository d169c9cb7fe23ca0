"""What is known of an iteration that runs, or has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flexrlhf.core.timeline import Span
from flexrlhf.runtime.measurements import Measurement, Measurements


@dataclass(slots=True)
class IterationResult:
    """What the tasks of an iteration measured, and when they ran."""

    iteration: int
    measurements: list[Measurements] = field(default_factory=list[Measurements])
    spans: list[Span] = field(default_factory=list[Span])
    done: list[str] = field(default_factory=list[str])
    """Tasks that have ended, by name."""

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON values, for a checkpoint that is written before its end."""
        return {
            "iteration": self.iteration,
            "measurements": [
                {name: asdict(measurement) for name, measurement in measured.items()}
                for measured in self.measurements
            ],
            "spans": [span.to_json() for span in self.spans],
            "done": self.done,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> IterationResult:
        """Returns what `to_json` wrote.

        Raises:
            LookupError, TypeError or ValueError: it is nothing of the kind.
        """
        return cls(
            int(document["iteration"]),
            [
                {name: Measurement(**fields) for name, fields in measured.items()}
                for measured in document["measurements"]
            ],
            [Span(**fields) for fields in document["spans"]],
            [str(name) for name in document["done"]],
        )
