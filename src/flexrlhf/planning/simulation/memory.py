"""How much memory the devices hold over time, and how much of it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.simulation.activity import Activity
from flexrlhf.planning.simulation.device_time import devices_by_groups
from flexrlhf.planning.workflow.binding import TaskTime
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.planning.workflow.groups import DeviceGroup

MemorySteps = tuple[tuple[float, int], ...]
"""Times at which the bytes held change, and the bytes from then on."""


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """What a role holds all the time on each of its devices."""

    weights_bytes: int
    held_bytes: int
    """Weights and, where the role is trained, gradients and optimiser state too."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How well the held memory is used."""

    efficiency: float
    """Useful over held bytes, integrated over time and devices. Useful are the weights of the role
    that works, and while it trains everything it holds."""
    idle_bytes: float
    """Held for roles that do nothing: the mean over time, on all devices together."""


def peak_bytes(
    groups: Sequence[DeviceGroup], activities: Sequence[Activity]
) -> dict[int, dict[Stage, int]]:
    """Returns the most bytes held on each device in each stage that occurs there."""
    by_group: dict[str, dict[Stage, int]] = {group.name: {} for group in groups}
    for item, time, *_ in activities:
        if isinstance(item, Task) and isinstance(time, TaskTime):
            held = by_group[item.group]
            held[item.stage] = max(held.get(item.stage, 0), time.peak_bytes)
    peaks_of: dict[int, dict[Stage, int]] = {}
    for names, devices in devices_by_groups(groups).items():
        peaks: dict[Stage, int] = {}
        for name in names:
            for stage, num_bytes in by_group[name].items():
                peaks[stage] = max(peaks.get(stage, 0), num_bytes)
        peaks_of |= {device: dict(peaks) for device in devices}
    return dict(sorted(peaks_of.items()))


def memory_over_time(
    groups: Sequence[DeviceGroup],
    activities: Sequence[Activity],
    resident_bytes: Mapping[int, int],
) -> dict[int, MemorySteps]:
    """Returns the bytes held on each device from the start of the run on.

    Args:
        groups: that hold the devices.
        activities: of the run; while a task runs, its devices hold its `peak_bytes`.
        resident_bytes: per device, held while nothing runs there; 0 where it is not known.
    """
    steps_of: dict[int, MemorySteps] = {}
    for names, devices in devices_by_groups(groups).items():
        tasks = sorted(
            (activity.start_s, activity.end_s, activity.time.peak_bytes)
            for activity in activities
            if isinstance(activity.item, Task)
            and isinstance(activity.time, TaskTime)
            and activity.item.group in names
            and activity.end_s > activity.start_s
        )
        for device in devices:
            steps_of[device] = _steps(tasks, resident_bytes.get(device, 0))
    return dict(sorted(steps_of.items()))


def memory_use(
    groups: Sequence[DeviceGroup],
    activities: Sequence[Activity],
    roles: Mapping[Role, RoleMemory],
    start_s: float,
    end_s: float,
) -> MemoryUse:
    """Returns how the memory that roles hold is used between two moments.

    Raises:
        ValueError: no role holds anything, or the moments are one.
    """
    num_devices = {group.name: len(group.devices) for group in groups}
    held = sum(
        roles[role].held_bytes * len(group.devices)
        for group in groups
        for role in group.roles
        if role in roles
    )
    if held <= 0 or not end_s > start_s:
        raise ValueError(f"{held} bytes held for {end_s - start_s} s have no efficiency.")
    useful = 0.0
    for item, _, began_s, ended_s, _ in activities:
        role = roles.get(item.role) if isinstance(item, Task) and item.role else None
        if isinstance(item, Task) and role is not None:
            working = role.held_bytes if item.stage == "train" else role.weights_bytes
            seconds = max(0.0, min(ended_s, end_s) - max(began_s, start_s))
            useful += working * num_devices[item.group] * seconds
    mean_useful = useful / (end_s - start_s)
    return MemoryUse(efficiency=mean_useful / held, idle_bytes=held - mean_useful)


def _steps(tasks: Sequence[tuple[float, float, int]], resident: int) -> MemorySteps:
    """The changes on one device whose tasks do not overlap."""
    steps: dict[float, int] = {0.0: resident}
    for start_s, end_s, num_bytes in tasks:
        steps[start_s] = num_bytes
        steps[end_s] = resident
    changes: list[tuple[float, int]] = []
    for time_s, num_bytes in steps.items():
        if not changes or changes[-1][1] != num_bytes:
            changes.append((time_s, num_bytes))
    return tuple(changes)
