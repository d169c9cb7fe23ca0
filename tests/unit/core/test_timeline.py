from __future__ import annotations

import json

import pytest

from flexrlhf.core.timeline import SHARES, Span, Timeline


def span(track, stage, start_s, end_s, *, iteration=0, transfer=None, name="work"):
    return Span(name, track, stage, None, start_s, end_s, iteration, transfer)


@pytest.fixture
def two_devices():
    """Ten seconds on two devices.

    second  0         1         2  ...
    W1      generate 0-4, experience 3-5, train 5-9, weights 9-10
    W2      generate 0-6, collective of training 5-6, advantage 6-7, then nothing
    """
    return Timeline(
        ["W1", "W2"],
        [
            span("W1", "generate", 0, 4),
            span("W1", "score", 3, 5, transfer="experience"),
            span("W1", "train", 5, 9),
            span("W1", "sync", 9, 10, transfer="weights"),
            span("W2", "generate", 0, 6),
            span("W2", "train", 5, 6, transfer="collective"),
            span("W2", "advantage", 6, 7),
        ],
    )


def test_shares_of_a_hand_worked_iteration(two_devices):
    # Of 20 device seconds: generate 4 + 6, train 4, advantage 1; the experience is exposed for one
    # of its two seconds, the collective not at all; sync 1; W2 idles for 3.
    assert two_devices.shares(0) == pytest.approx(
        {
            "generate": 10 / 20,
            "score": 1 / 20,
            "train": 4 / 20,
            "communication": 1 / 20,
            "sync": 1 / 20,
            "bubble": 3 / 20,
        }
    )


def test_stage_seconds_are_unions_over_tracks(two_devices):
    # score: 3-5 moving and 6-7 computing; train: 5-6 on W2 lies inside 5-9 on W1.
    assert two_devices.stage_seconds(0) == {"generate": 6, "score": 3, "train": 4, "sync": 1}


def test_utilization_is_the_computing_part_of_each_device(two_devices):
    assert two_devices.utilization(0) == pytest.approx({"W1": 8 / 10, "W2": 7 / 10})
    assert two_devices.utilization() == two_devices.utilization(0)


def test_mean_utilization_is_the_sum_of_the_computing_shares(two_devices):
    shares = two_devices.shares(0)
    mean = sum(two_devices.utilization(0).values()) / 2
    assert mean == pytest.approx(shares["generate"] + shares["score"] + shares["train"])


def test_stages_that_do_not_occur_are_absent():
    timeline = Timeline(["W1"], [span("W1", "train", 1, 3)])
    assert timeline.stage_seconds(0) == {"train": 2}
    assert timeline.stage_seconds(5) == {}


def test_work_of_another_iteration_in_the_window_is_no_bubble():
    timeline = Timeline(
        ["train", "generate"],
        [
            span("generate", "generate", 0, 4, iteration=0),
            span("train", "train", 4, 8, iteration=0),
            span("generate", "generate", 4, 8, iteration=1),
            span("train", "train", 8, 12, iteration=1),
        ],
    )
    assert timeline.window(1) == (4, 12)
    shares = timeline.shares(1)
    assert shares["generate"] == pytest.approx(4 / 16)
    assert shares["train"] == pytest.approx(8 / 16)
    assert shares["bubble"] == pytest.approx(4 / 16)


def test_a_device_without_spans_is_all_bubble():
    timeline = Timeline(["W1", "W2"], [span("W1", "train", 0, 2)])
    assert timeline.shares(0)["bubble"] == pytest.approx(0.5)
    assert timeline.utilization() == {"W1": 1.0, "W2": 0.0}


def test_tracks_that_are_no_devices_do_not_count():
    spans = [span("W1", "train", 0, 2), span("link", "train", 0, 2, transfer="experience")]
    assert Timeline(["W1"], spans).shares(0)["train"] == 1.0
    assert Timeline((), spans).shares(0)["train"] == 0.5


def test_overlapping_work_on_one_track_counts_once():
    timeline = Timeline(["W1"], [span("W1", "generate", 0, 4), span("W1", "score", 1, 3)])
    shares = timeline.shares(0)
    assert (shares["generate"], shares["score"]) == (0.5, 0.5)


def test_an_install_that_computes_is_sync():
    timeline = Timeline(["W1"], [span("W1", "train", 0, 3), span("W1", "sync", 3, 4)])
    assert timeline.shares(0)["sync"] == 0.25
    assert timeline.utilization() == {"W1": 0.75}


def test_shares_add_up_to_one_for_awkward_numbers():
    spans = [
        span(f"W{index % 3}", stage, index / 7, index / 7 + 0.3)
        for index, stage in enumerate(["generate", "score", "train", "sync", "advantage"] * 8)
    ]
    shares = Timeline((), spans).shares(0)
    assert set(shares) == set(SHARES)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)


def test_extent_and_order():
    timeline = Timeline(["W1"])
    assert timeline.makespan == 0.0
    assert timeline.utilization() == {"W1": 0.0}
    timeline.append(span("W2", "train", 5, 7, iteration=1))
    timeline.append(span("W1", "train", 2, 3, iteration=0))
    timeline.append(span("W1", "generate", 8, 9, iteration=None))
    assert timeline.makespan == 7
    assert timeline.iterations == (0, 1)
    assert timeline.tracks == ("W1", "W2")
    assert [one.start_s for one in timeline.spans] == [5, 2, 8]


def test_an_instant_is_all_bubble():
    assert Timeline(["W1"], [span("W1", "train", 1, 1)]).shares(0)["bubble"] == 1.0


def test_unknown_iteration_is_refused(two_devices):
    with pytest.raises(ValueError, match="iteration 7"):
        two_devices.shares(7)


@pytest.mark.parametrize("end_s", [0.5, float("nan")])
def test_a_span_that_ends_before_it_starts_is_refused(end_s):
    with pytest.raises(ValueError, match="ends at"):
        span("W1", "train", 1.0, end_s)


def test_json_round_trip(two_devices):
    document = json.loads(json.dumps(two_devices.to_json()))
    again = Timeline.from_json(document)
    assert again.spans == two_devices.spans
    assert again.devices == two_devices.devices


def test_nobody_works_where_no_span_of_any_device_is():
    timeline = Timeline(
        ["a", "b"],
        [
            Span("x", "a", "score", None, 0.0, 2.0, 1),
            Span("y", "b", "train", None, 1.0, 3.0, 1),
            Span("z", "a", "train", None, 4.0, 9.0, 2, "experience"),
        ],
    )
    assert timeline.idle_s(0.0, 9.0) == 1.0
    assert timeline.idle_s(3.5, 5.0) == 0.5
    assert timeline.idle_s(5.0, 6.0) == 0.0
    assert timeline.idle_s(3.0, 4.0) == 1.0


def test_a_timeline_that_forgets_is_one_that_never_knew(two_devices):
    """In all measures: of iterations, of windows and of the whole."""
    spans = [span("a", "generate", 10.0 * i, 10.0 * i + 4, iteration=i) for i in range(1, 6)] + [
        span("b", "train", 10.0 * i + 3, 10.0 * i + 9, iteration=i) for i in range(1, 6)
    ]
    spans.append(span("a", "sync", 0, 1, iteration=None))
    forgetful = Timeline(("a", "b"), spans)
    forgetful.forget(4)
    fresh = Timeline(("a", "b"), [one for one in spans if (one.iteration or 0) >= 4])
    assert forgetful.to_json() == fresh.to_json()
    assert forgetful.iterations == (4, 5)
    assert forgetful.makespan == fresh.makespan == 19
    for measure in ("shares", "utilization", "idle_s"):
        window = (35.0, 55.0)
        arguments = window if measure == "idle_s" else (window,)
        assert getattr(forgetful, measure)(*arguments) == getattr(fresh, measure)(*arguments)
