"""Errors of kinds of tasks, worked out by hand."""

from __future__ import annotations

from flexrlhf.core.names import TransferClass
from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.report.task_table import task_table


def span(
    track: str, iteration: int, start_s: float, end_s: float, moved: TransferClass | None = None
) -> Span:
    """A pass of the actor."""
    name = "forward_backward/actor/epoch0/mini0/micro0"
    return Span(name, track, "train", "actor", start_s, end_s, iteration, moved)


def test_parts_of_a_task_are_added_up_and_the_first_iteration_is_left_out() -> None:
    predicted = Timeline(
        ["device 0"], [span("device 0", 1, 0.0, 1.0), span("device 0", 1, 1.0, 1.5, "collective")]
    )
    measured = Timeline(
        ["device 0", "device 1"],
        [
            span("device 0", 1, 0.0, 9.0),
            span("device 0", 2, 10.0, 12.0),
            span("device 1", 2, 10.0, 12.0),
        ],
    )
    html = task_table({"predicted": predicted, "measured": measured})
    assert html is not None
    assert "forward_backward actor" in html
    assert "-25 %" in html  # 1.5 s for 2 s


def test_a_run_that_was_not_predicted_has_no_table() -> None:
    assert task_table({"measured": Timeline(["device 0"], [])}) is None
