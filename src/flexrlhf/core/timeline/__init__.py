"""What happened when, on which device: one form for simulated and measured runs."""

from __future__ import annotations

from flexrlhf.core.timeline.occupancy import SHARES, Share
from flexrlhf.core.timeline.span import Attribute, Span
from flexrlhf.core.timeline.timeline import Timeline
from flexrlhf.core.timeline.trace import TraceEvent, read_trace, to_trace_events, write_trace

__all__ = [
    "SHARES",
    "Attribute",
    "Share",
    "Span",
    "Timeline",
    "TraceEvent",
    "read_trace",
    "to_trace_events",
    "write_trace",
]
