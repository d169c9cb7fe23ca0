"""Timelines of a simulation: one track per group, or one per device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flexrlhf.core.names import Stage
from flexrlhf.core.timeline import Attribute, Span, Timeline
from flexrlhf.planning.simulation.activity import Activity
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.groups import DeviceGroup


def group_timeline(graphs: Sequence[Graph], activities: Sequence[Activity]) -> Timeline:
    """Returns what each group did.

    A task is a span of compute and, behind it, one of its exposed collectives. A transfer stands on
    the track of the group that receives it and belongs to the stage that waits for it. Iterations
    count from 1, as in the timeline of a real run.
    """
    stages: dict[int, dict[str, Stage]] = {
        graph.iteration: {task.name: task.stage for task in graph.tasks} for graph in graphs
    }
    timeline = Timeline(group.name for group in graphs[0].groups)
    for activity in activities:
        for span in _spans(activity, stages[activity.item.iteration]):
            timeline.append(span)
    return timeline


def device_timeline(timeline: Timeline, groups: Sequence[DeviceGroup]) -> Timeline:
    """Returns the timeline with the spans of each group on the tracks of all its devices."""
    tracks = {group.name: [device_track(device) for device in group.devices] for group in groups}
    devices = sorted({device for group in groups for device in group.devices})
    return Timeline(
        [device_track(device) for device in devices],
        (_on_track(span, track) for span in timeline.spans for track in tracks[span.track]),
    )


def device_track(device: int) -> str:
    """Returns the name of a device's track."""
    return f"device {device}"


def _spans(activity: Activity, stages: Mapping[str, Stage]) -> Iterator[Span]:
    item, time, start_s, end_s, _ = activity
    iteration = item.iteration + 1
    if isinstance(item, Transfer):
        stage = "sync" if item.kind == "weights" else stages[item.targets[0]]
        assert isinstance(time, TransferTime)
        moved: dict[str, Attribute] = {"bytes": time.num_bytes, "links": ", ".join(time.links)}
        yield Span(
            item.name, item.target_group, stage, None, start_s, end_s, iteration, item.kind, moved
        )
        return
    assert isinstance(time, TaskTime)
    # A task that is cut off may not have come to its collectives.
    computed_s = min(start_s + time.compute_s, end_s)
    if time.compute_s > 0 or time.communication_s == 0:
        yield _task_span(item, start_s, computed_s, time.attributes)
    if time.communication_s > 0 and end_s > computed_s:
        yield Span(
            item.name, item.group, item.stage, item.role, computed_s, end_s, iteration, "collective"
        )


def _task_span(
    task: Task, start_s: float, end_s: float, attributes: Mapping[str, Attribute]
) -> Span:
    iteration = task.iteration + 1
    return Span(
        task.name, task.group, task.stage, task.role, start_s, end_s, iteration, None, attributes
    )


def _on_track(span: Span, track: str) -> Span:
    return Span(
        span.name,
        track,
        span.stage,
        span.role,
        span.start_s,
        span.end_s,
        span.iteration,
        span.transfer,
        span.attributes,
    )
