"""What a plan is expected to cost, in the words of `plan --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexrlhf.core.names import Role, Stage
from flexrlhf.core.timeline import Share
from flexrlhf.planning.placement.json_form import check_keys


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times, shares and memory of one iteration under a plan."""

    iteration_s: float
    samples_per_s: float
    stage_s: Mapping[Share, float]
    shares: Mapping[Share, float]
    peak_bytes: Mapping[int, Mapping[Stage, int]]
    """Per device and stage."""
    copies: Mapping[Role, float]
    """Whole copies of each role's weights over all devices."""
    max_batch: int | None = None
    """The largest batch that fits, in samples."""
    cost_per_1k_samples: float | None = None
    """None where the cluster names no price."""

    def to_json(self) -> dict[str, Any]:
        """Returns the `predicted` object; devices become strings, as JSON keys are."""
        document: dict[str, Any] = {
            "iteration_s": self.iteration_s,
            "samples_per_s": self.samples_per_s,
            "stage_s": dict(self.stage_s),
            "shares": dict(self.shares),
            "peak_bytes": {str(device): dict(b) for device, b in self.peak_bytes.items()},
            "copies": dict(self.copies),
            "max_batch": self.max_batch,
            "cost_per_1k_samples": self.cost_per_1k_samples,
        }
        return {key: value for key, value in document.items() if value is not None}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Prediction:
        """Returns the prediction that `to_json` wrote.

        Raises:
            PlanError: a key is unknown or missing.
        """
        check_keys(cls, document, "prediction")
        values: dict[str, Any] = dict(document)
        by_device: Mapping[str, Any] = document["peak_bytes"]
        values["peak_bytes"] = {int(device): stages for device, stages in by_device.items()}
        return cls(**values)
