"""One stretch of work, or of movement, on one track."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flexrlhf.core.names import Role, Stage, TransferClass

Attribute = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Span:
    """What one track did from `start_s` to `end_s`."""

    name: str
    track: str
    """Usually a device; whatever can do one thing at a time."""
    stage: Stage
    role: Role | None
    """None where the work concerns several roles or none."""
    start_s: float
    end_s: float
    iteration: int | None = None
    """None outside iterations: evaluation, for example."""
    transfer: TransferClass | None = None
    """What is moved; None where the track computes."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    """Numbers to read beside the span: samples, tokens, bytes, weight version."""

    def __post_init__(self) -> None:
        if not self.start_s <= self.end_s:
            raise ValueError(f"{self.name!r} ends at {self.end_s} s, before {self.start_s} s.")

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)
