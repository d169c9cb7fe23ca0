from __future__ import annotations

import json
import random

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.core.timeline import Span, Timeline, read_trace, to_trace_events, write_trace


def random_timeline(seed: int) -> Timeline:
    draw = random.Random(seed)
    timeline = Timeline(["device 0", "device 1", "idle"])
    for number in range(60):
        start_us = draw.randrange(10**12)
        timeline.append(
            Span(
                name=f"task {number}",
                track=draw.choice(["device 0", "device 1", "link"]),
                stage=draw.choice(["generate", "score", "advantage", "train", "sync"]),
                role=draw.choice([None, "actor", "shadow_critic"]),
                start_s=start_us / 1e6,
                end_s=(start_us + draw.randrange(10**6)) / 1e6,
                iteration=draw.choice([None, 0, 1]),
                transfer=draw.choice([None, None, "experience", "weights"]),
                attributes=draw.choice([{}, {"samples": 4, "note": "ü", "done": True, "x": 0.5}]),
            )
        )
    return timeline


def test_round_trip_is_exact_to_a_microsecond(tmp_path):
    written = {"measured": random_timeline(1), "predicted": random_timeline(2)}
    write_trace(tmp_path / "timeline.json", written)
    read = read_trace(tmp_path / "timeline.json")
    assert list(read) == ["measured", "predicted"]
    for name, timeline in written.items():
        assert read[name].devices == timeline.devices
        assert read[name].spans == timeline.spans


def test_times_are_rounded_to_whole_microseconds():
    span = Span("work", "W1", "train", "actor", 0.0000014, 1.0000026, 0)
    event = to_trace_events(Timeline((), [span]), "measured", 1)[-1]
    assert (event["ts"], event["dur"]) == (1, 1_000_002)


def test_events_are_what_a_trace_viewer_reads():
    timeline = Timeline(["W1"], [Span("work", "W1", "train", "actor", 1.0, 3.5, 2, None, {"n": 4})])
    events = to_trace_events(timeline, "predicted", 7)
    assert {"name": "process_name", "ph": "M", "pid": 7, "tid": 0}.items() <= events[0].items()
    assert events[0]["args"]["name"] == "predicted"
    assert events[-1] == {
        "name": "work",
        "cat": "train",
        "ph": "X",
        "ts": 1_000_000,
        "dur": 2_500_000,
        "pid": 7,
        "tid": 1,
        "args": {"role": "actor", "iteration": 2, "attributes": {"n": 4}},
    }


def test_overlapping_spans_stand_in_lanes_of_their_own():
    def moved(start_s, end_s):
        return Span("move", "W1", "score", None, start_s, end_s, 0, "experience")

    timeline = Timeline(
        ["W1"],
        [
            moved(0, 2),
            Span("work", "W1", "train", None, 0, 4, 0),
            moved(1, 3),
            moved(2, 4),
        ],
    )
    events = to_trace_events(timeline, "measured", 1)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [names[e["tid"]] for e in events if e["ph"] == "X"] == [
        "W1 transfers",
        "W1",
        "W1 transfers (2)",
        "W1 transfers",
    ]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "timeline.json"
    write_trace(path, {"measured": random_timeline(1)})
    before = path.read_bytes()
    bad = Timeline((), [Span("x", "W1", "train", None, 0, 1, 0, None, {"bad": object()})])  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        write_trace(path, {"measured": bad})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", json.dumps({"traceEvents": [{"ph": "X", "name": "foreign", "pid": 1}]})],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"timeline\.json is not a whole trace"):
        read_trace(path)
