"""Times, shares and memory of an iteration, worked by hand."""

from __future__ import annotations

import pytest

from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.runtime.telemetry import RoleBytes, memory_efficiency, timeline_metrics

# Ten seconds of one device: 4 generate, 1 idle, 2 score, 2 train, 1 sync.
SPANS = [
    Span("generate/0", "main", "generate", "actor", 10.0, 14.0, 3),
    Span("logprobs/actor/0", "main", "score", "actor", 15.0, 16.0, 3),
    Span("advantage", "main", "advantage", None, 16.0, 17.0, 3),
    Span("optimizer_step", "main", "train", "actor", 17.0, 19.0, 3),
    Span("install/main", "main", "sync", None, 19.0, 20.0, 3),
]


def test_times_and_shares_of_an_iteration():
    assert timeline_metrics(Timeline(["main"], SPANS), 3) == pytest.approx(
        {
            "time/generate_s": 4.0,
            "time/score_s": 2.0,
            "time/train_s": 2.0,
            "time/sync_s": 1.0,
            "time/iteration_s": 10.0,
            "time/driver_s": 1.0,
            "share/generate": 0.4,
            "share/score": 0.2,
            "share/train": 0.2,
            "share/sync": 0.1,
            "share/bubble": 0.1,
            "utilization/mean": 0.8,
        }
    )


def test_what_did_not_happen_has_no_time_and_no_share():
    spans = [Span("optimizer_step", "main", "train", "actor", 0.0, 2.0, 1)]
    metrics = timeline_metrics(Timeline(["main"], spans), 1)
    assert metrics.keys() == {
        "time/train_s",
        "time/iteration_s",
        "time/driver_s",
        "share/train",
        "share/bubble",
        "utilization/mean",
    }
    assert (metrics["share/train"], metrics["share/bubble"]) == (1.0, 0.0)


def test_shares_add_up_to_one():
    metrics = timeline_metrics(Timeline(["main"], SPANS), 3)
    assert sum(v for k, v in metrics.items() if k.startswith("share/")) == pytest.approx(1.0)


def test_bytes_of_a_role():
    trained, frozen = RoleBytes(weights=10, optimizer=20), RoleBytes(weights=10)
    assert (trained.saved, trained.held) == (30, 40)  # the gradient is held, but not saved
    assert (frozen.saved, frozen.held) == (10, 10)


def test_memory_efficiency_is_useful_over_held():
    """Held: 40 + 20 bytes for 10 s. Useful: 10 B x 5 s of forward work, 40 B x 2 s of training."""
    roles = {"actor": RoleBytes(10, 20), "reference": RoleBytes(20)}
    useful = 10 * (4.0 + 1.0) + 40 * 2.0
    assert memory_efficiency(SPANS, {"main": roles}) == pytest.approx(useful / (60 * 10.0))


def test_memory_efficiency_counts_frozen_roles_while_they_score():
    spans = [Span("logprobs/reference/0", "main", "score", "reference", 0.0, 1.0, 1)]
    roles = {"actor": RoleBytes(10, 20), "reference": RoleBytes(20)}
    assert memory_efficiency(spans, {"main": roles}) == pytest.approx(20 / 60)


def test_memory_efficiency_of_a_role_without_a_model():
    """A reward that is a function holds no bytes."""
    spans = [Span("rewards/reward/0", "main", "score", "reward", 0.0, 1.0, 1)]
    assert memory_efficiency(spans, {"main": {"actor": RoleBytes(10, 20)}}) == 0.0
    assert memory_efficiency(spans, {"main": {}}) == 0.0


def test_memory_efficiency_of_no_time():
    spans = [Span("generate/0", "main", "generate", "actor", 1.0, 1.0, 1)]
    assert memory_efficiency(spans, {"main": {"actor": RoleBytes(10, 20)}}) == 0.0
