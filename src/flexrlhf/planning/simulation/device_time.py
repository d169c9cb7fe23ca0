"""How the devices spend their time: groups weighted by the devices they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexrlhf.core.timeline import SHARES, Share, Span
from flexrlhf.core.timeline.occupancy import COMPUTE, occupancy
from flexrlhf.planning.workflow.groups import DeviceGroup


def devices_by_groups(
    groups: Sequence[DeviceGroup],
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Returns the devices that do the same all the time, by the names of their groups."""
    alike: dict[tuple[str, ...], set[int]] = {}
    for group in groups:
        rest = set(group.devices)
        for names, devices in tuple(alike.items()):
            shared = devices & rest
            if shared:
                alike[*names, group.name] = shared
                rest.difference_update(shared)
                devices.difference_update(shared)
                if not devices:
                    del alike[names]
        if rest:
            alike[group.name,] = rest
    return {names: tuple(sorted(devices)) for names, devices in alike.items()}


class DeviceTime:
    """Seconds of each device in a stretch of a run, by what they were spent on.

    Args:
        groups: that hold the devices.
        spans: on the tracks of the groups.
        start_s: beginning of the stretch.
        end_s: its end.
    """

    def __init__(
        self, groups: Sequence[DeviceGroup], spans: Iterable[Span], start_s: float, end_s: float
    ) -> None:
        self._length_s = end_s - start_s
        inside = [span for span in spans if span.start_s < end_s and span.end_s > start_s]
        self._held = {
            devices: occupancy((s for s in inside if s.track in names), start_s, end_s)
            for names, devices in devices_by_groups(groups).items()
        }

    def shares(self) -> dict[Share, float]:
        """Returns the parts of the time of all devices; the sum is 1.

        Communication and sync count where the same device does not compute meanwhile; `bubble` is
        the time in which a device does nothing.
        """
        device_s = self._length_s * sum(len(devices) for devices in self._held)
        if device_s == 0.0:
            return {share: 1.0 if share == "bubble" else 0.0 for share in SHARES}
        return {
            share: sum(len(devices) * held[share] for devices, held in self._held.items())
            / device_s
            for share in SHARES
        }

    def utilization(self) -> dict[int, float]:
        """Returns per device the part of the time in which it generates, scores or trains."""
        used = {
            devices: sum(held[share] for share in COMPUTE) / self._length_s
            if self._length_s
            else 0.0
            for devices, held in self._held.items()
        }
        by_device = {device: part for devices, part in used.items() for device in devices}
        return dict(sorted(by_device.items()))
