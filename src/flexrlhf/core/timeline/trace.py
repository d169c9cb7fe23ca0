"""Timelines as a Chrome trace, which Perfetto and `chrome://tracing` open.

Times are whole microseconds. Spans of one track that overlap stand in lanes below each other, since
a trace viewer draws only nested spans in one lane; work comes first, transfers have lanes of their
own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import DataError
from flexrlhf.core.timeline.span import Span
from flexrlhf.core.timeline.timeline import Timeline

TraceEvent = dict[str, Any]
_Lane = tuple[str, bool, int]
"""Track, whether it holds transfers, and its number."""


def to_trace_events(timeline: Timeline, process_name: str, process_id: int) -> list[TraceEvent]:
    """Returns the events of one timeline, as one process of the trace."""
    lanes = _lanes(timeline.spans)
    order = {track: place for place, track in enumerate(timeline.tracks)}
    sorted_lanes = sorted(set(lanes), key=lambda lane: (order[lane[0]], *lane[1:]))
    thread_ids = {lane: number for number, lane in enumerate(sorted_lanes, start=1)}
    process = {"name": process_name, "devices": list(timeline.devices)}
    events = [_metadata("process_name", process_id, 0, process)]
    for lane, thread_id in thread_ids.items():
        names = {"name": _lane_name(lane), "track": lane[0]}
        events.append(_metadata("thread_name", process_id, thread_id, names))
        position = {"sort_index": thread_id}
        events.append(_metadata("thread_sort_index", process_id, thread_id, position))
    events += [
        _span_event(span, process_id, thread_ids[lane])
        for span, lane in zip(timeline.spans, lanes, strict=True)
    ]
    return events


def write_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Writes one trace of several timelines, each as a process; readers never see half a file."""
    events = [
        event
        for process_id, (name, timeline) in enumerate(timelines.items(), start=1)
        for event in to_trace_events(timeline, name, process_id)
    ]
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def read_trace(path: Path) -> dict[str, Timeline]:
    """Returns the timelines of a trace that `write_trace` wrote, by process name.

    Raises:
        DataError: the file is no such trace.
    """
    try:
        events: list[TraceEvent] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        processes = {e["pid"]: e["args"] for e in events if e["name"] == "process_name"}
        tracks = {
            (e["pid"], e["tid"]): e["args"]["track"] for e in events if e["name"] == "thread_name"
        }
        timelines = {pid: Timeline(args["devices"]) for pid, args in processes.items()}
        for event in events:
            if event["ph"] == "X":
                track = tracks[event["pid"], event["tid"]]
                timelines[event["pid"]].append(_read_span(event, track))
        return {args["name"]: timelines[pid] for pid, args in processes.items()}
    except (
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise DataError(
            f"{path} is not a whole trace of this program: {error!r}.",
            "A run writes it as timeline.json.",
            "Take the file of another run folder, or let the run write it again.",
        ) from error


def _span_event(span: Span, process_id: int, thread_id: int) -> TraceEvent:
    start_us = round(span.start_s * 1e6)
    optional = {"role": span.role, "iteration": span.iteration, "transfer": span.transfer}
    args: dict[str, Any] = {key: value for key, value in optional.items() if value is not None}
    if span.attributes:
        args["attributes"] = dict(span.attributes)
    return {
        "name": span.name,
        "cat": span.stage,
        "ph": "X",
        "ts": start_us,
        "dur": round(span.end_s * 1e6) - start_us,
        "pid": process_id,
        "tid": thread_id,
        "args": args,
    }


def _read_span(event: TraceEvent, track: str) -> Span:
    return Span(
        name=event["name"],
        track=track,
        stage=event["cat"],
        start_s=event["ts"] / 1e6,
        end_s=(event["ts"] + event["dur"]) / 1e6,
        **{"role": None} | event["args"],
    )


def _lanes(spans: Sequence[Span]) -> list[_Lane]:
    """The lane of each span: the first of its kind on its track that is free by then."""
    free_from: dict[tuple[str, bool], list[float]] = {}
    lanes: dict[int, _Lane] = {}
    for index in sorted(range(len(spans)), key=lambda index: spans[index].start_s):
        span = spans[index]
        kind = (span.track, span.transfer is not None)
        ends = free_from.setdefault(kind, [])
        number = _first_free(ends, span.start_s)
        ends[number : number + 1] = [span.end_s]
        lanes[index] = (*kind, number)
    return [lanes[index] for index in range(len(spans))]


def _first_free(ends: Sequence[float], start_s: float) -> int:
    """The first lane that ended by `start_s`; else the number of a new one."""
    free = (number for number, end_s in enumerate(ends) if end_s <= start_s)
    return next(free, len(ends))


def _lane_name(lane: _Lane) -> str:
    track, has_transfers, number = lane
    name = f"{track} transfers" if has_transfers else track
    return name if number == 0 else f"{name} ({number + 1})"


def _metadata(name: str, process_id: int, thread_id: int, args: TraceEvent) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": process_id, "tid": thread_id, "args": args}
