from __future__ import annotations

import plotly.graph_objects as go

from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.report.colours import STAGE_COLOURS
from flexrlhf.report.timeline_chart import timeline_figure, timeline_figures


def bars(figure):
    """Stage, lane, start and length of each bar."""
    return sorted(
        (trace["name"], lane, base, length)
        for trace in figure["data"]
        for lane, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
    )


def one_device(*rows):
    spans = (Span(name, "cpu", stage, role, a, b, 1) for name, stage, role, a, b in rows)
    return Timeline(["cpu"], spans)


def test_spans_stand_on_their_track_from_the_start_of_the_iteration(timeline):
    assert bars(timeline_figure({"measured": timeline}, 2)) == [
        ("generate", "device 0", 0.0, 4.0),
        ("score", "device 1", 4.0, 1.0),
        ("sync", "device 0", 8.0, 0.5),
        ("train", "device 1", 5.0, 3.0),
    ]


def test_stages_have_their_colours_and_transfers_a_pattern(timeline):
    traces = {t["name"]: t for t in timeline_figure({"measured": timeline}, 1)["data"]}
    assert traces["train"]["marker"]["color"] == STAGE_COLOURS["train"]
    assert traces["train"]["marker"]["pattern"]["shape"] == ""
    assert traces["sync"]["marker"]["pattern"]["shape"] == "/"


def test_an_idle_device_keeps_its_lane(timeline):
    idle = Timeline(["device 0", "spare", "device 1"], timeline.spans)
    axis = timeline_figure({"measured": idle}, 1)["layout"]["yaxis"]
    assert axis["categoryarray"] == ["device 0", "spare", "device 1"]


def test_one_device_has_a_lane_per_role():
    timeline = one_device(
        ("answer", "generate", "actor", 0.0, 2.0),
        ("judge", "score", "reward", 2.0, 3.0),
        ("advantages", "advantage", None, 3.0, 3.5),
    )
    figure = timeline_figure({"measured": timeline}, 1)
    assert figure["layout"]["yaxis"]["categoryarray"] == ["actor", "reward", "advantage"]
    assert figure["data"][0]["text"] == ["answer"]


def test_a_short_iteration_is_drawn_in_milliseconds():
    timeline = one_device(("answer", "generate", "actor", 5.0, 5.02))
    figure = timeline_figure({"measured": timeline}, 1)
    assert figure["data"][0]["x"] == [20.0]
    assert figure["layout"]["xaxis"]["title"]["text"].endswith("ms")


def test_a_prediction_stands_below_and_names_each_stage_once(timeline):
    predicted = Timeline(["device 0"], [Span("g", "device 0", "generate", "actor", 0.0, 3.0, 1)])
    figure = timeline_figure({"measured": timeline, "predicted": predicted}, 2)
    lanes = figure["layout"]["yaxis"]["categoryarray"]
    assert lanes == ["measured · device 0", "measured · device 1", "predicted · actor"]
    named = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
    assert named == ["generate", "score", "train", "sync"]


def test_what_the_mouse_shows_is_escaped():
    span = Span("<b>", "cpu", "train", "actor", 0.0, 1.0, 1, attributes={"samples": 32})
    (trace,) = timeline_figure({"measured": Timeline(["cpu"], [span])}, 1)["data"]
    (words,) = trace["hovertext"]
    assert words.startswith("<b>&lt;b&gt;</b><br>1 s, from 0 ms")
    assert words.endswith("samples: 32")


def test_a_long_run_shows_first_last_and_some_between():
    spans = [Span("a", "cpu", "train", "actor", float(i), i + 0.5, i) for i in range(1, 101)]
    figures = timeline_figures({"measured": Timeline(["cpu"], spans)})
    assert len(figures) == 12
    assert min(figures) == 1
    assert max(figures) == 100


def test_very_many_spans_leave_the_last_iteration_with_the_longest():
    spans = [
        Span("a", "cpu", "train", "actor", float(n), n + (0.5 if n % 2 else 0.25), iteration)
        for iteration in (1, 2)
        for n in range(4000)
    ]
    figures = timeline_figures({"measured": Timeline(["cpu"], spans)})
    assert list(figures) == [2]
    lengths = [length for *_, length in bars(figures[2])]
    assert len(lengths) == 3000
    assert sum(length == 0.5 for length in lengths) == 2000


def test_without_measured_iterations_nothing_is_drawn(timeline):
    assert timeline_figures({}) == {}
    assert timeline_figures({"predicted": timeline}) == {}
    outside = Timeline(["cpu"], [Span("evaluate", "cpu", "generate", "actor", 0.0, 1.0)])
    assert timeline_figures({"measured": outside}) == {}


def test_plotly_accepts_the_figure(timeline):
    go.Figure(timeline_figure({"measured": timeline, "predicted": timeline}, 1))
