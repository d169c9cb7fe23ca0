"""Spans of a run and the measures that plans, metrics and reports take from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flexrlhf.core.timeline.occupancy import COMPUTE, SHARES, Share, occupancy, stage_of, union_s
from flexrlhf.core.timeline.span import Span


class Timeline:
    """What each track did when, measured or simulated.

    Args:
        devices: the tracks that count in shares and utilisation, idle ones too. Without any,
            every track that has a span counts.
        spans: in the order of their writing.
    """

    __slots__ = ("_by_iteration", "_spans", "_tracks", "_windows", "devices")

    def __init__(self, devices: Iterable[str] = (), spans: Iterable[Span] = ()) -> None:
        self.devices = tuple(devices)
        self._tracks = dict.fromkeys(self.devices)
        self._spans: list[Span] = []
        self._by_iteration: dict[int | None, list[Span]] = {}
        self._windows: dict[int | None, tuple[float, float]] = {}
        for span in spans:
            self.append(span)

    def append(self, span: Span) -> None:
        """Adds a span; any order of times will do."""
        self._spans.append(span)
        self._tracks.setdefault(span.track)
        self._by_iteration.setdefault(span.iteration, []).append(span)
        start_s, end_s = self._windows.get(span.iteration, (span.start_s, span.end_s))
        self._windows[span.iteration] = (min(start_s, span.start_s), max(end_s, span.end_s))

    def forget(self, iteration: int) -> None:
        """Drops the spans of all iterations before this one; those of none count as iteration 0."""
        old = [key for key in self._by_iteration if (key or 0) < iteration]
        for key in old:
            del self._by_iteration[key], self._windows[key]
        if old:
            self._spans = [span for span in self._spans if span.iteration in self._by_iteration]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in the order of their writing."""
        return tuple(self._spans)

    @property
    def iterations(self) -> tuple[int, ...]:
        """Iterations that have a span, ascending."""
        return tuple(sorted(i for i in self._by_iteration if i is not None))

    @property
    def tracks(self) -> tuple[str, ...]:
        """The devices, then every other track in the order of its first span."""
        return tuple(self._tracks)

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end; 0 without spans."""
        if not self._windows:
            return 0.0
        start_s, end_s = self._extent()
        return end_s - start_s

    def window(self, iteration: int) -> tuple[float, float]:
        """Returns the first start and the last end of an iteration, in seconds.

        Raises:
            ValueError: the iteration has no span.
        """
        if iteration not in self._windows:
            raise ValueError(f"The timeline has no span of iteration {iteration}.")
        return self._windows[iteration]

    def stage_seconds(self, iteration: int) -> dict[Share, float]:
        """Returns the seconds in which any track worked on each stage that occurs.

        `advantage` counts as `score`; what moves inside a stage belongs to it, and weights to
        `sync`. Stages that overlap may add up to more than the iteration takes.
        """
        by_stage: dict[Share, list[Span]] = {}
        for span in self._by_iteration.get(iteration, []):
            by_stage.setdefault(stage_of(span), []).append(span)
        return {stage: union_s(by_stage[stage]) for stage in SHARES if stage in by_stage}

    def shares(self, window: int | tuple[float, float]) -> dict[Share, float]:
        """Returns how the device time of a window was spent; the sum is 1.

        Work of other iterations in the window counts too, since a pipelined run overlaps them.
        Communication and sync count where the same device does not compute meanwhile; `bubble`
        is the time in which a device does nothing.

        Args:
            window: an iteration, or a start and an end in seconds.
        """
        start_s, end_s = self.window(window) if isinstance(window, int) else window
        by_device = self._occupancies(start_s, end_s)
        device_s = (end_s - start_s) * len(by_device)
        if device_s == 0.0:
            return {share: 1.0 if share == "bubble" else 0.0 for share in SHARES}
        return {
            share: sum(held[share] for held in by_device.values()) / device_s for share in SHARES
        }

    def idle_s(self, start_s: float, end_s: float) -> float:
        """Returns the seconds of a window in which no device does or moves anything."""
        occupied_s = union_s(
            replace(span, start_s=max(span.start_s, start_s), end_s=min(span.end_s, end_s))
            for span in self._near(start_s, end_s)
            if span.start_s < end_s and span.end_s > start_s
        )
        return end_s - start_s - occupied_s

    def utilization(self, window: int | tuple[float, float] | None = None) -> dict[str, float]:
        """Returns per device the part of the time in which it generates, scores or trains.

        Args:
            window: an iteration, or a start and an end in seconds; the whole timeline when None.
        """
        if not self._windows:
            return dict.fromkeys(self.devices, 0.0)
        if window is None:
            start_s, end_s = self._extent()
        else:
            start_s, end_s = self.window(window) if isinstance(window, int) else window
        length_s = end_s - start_s
        return {
            track: sum(held[share] for share in COMPUTE) / length_s if length_s else 0.0
            for track, held in self._occupancies(start_s, end_s).items()
        }

    def to_json(self) -> dict[str, Any]:
        """Returns devices and spans as JSON values."""
        return {"devices": list(self.devices), "spans": [span.to_json() for span in self._spans]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Timeline:
        """Returns the timeline that `to_json` wrote."""
        return cls(document["devices"], (Span(**span) for span in document["spans"]))

    def __repr__(self) -> str:
        return f"Timeline({len(self.tracks)} tracks, {len(self._spans)} spans)"

    def _extent(self) -> tuple[float, float]:
        starts, ends = zip(*self._windows.values(), strict=True)
        return min(starts), max(ends)

    def _occupancies(self, start_s: float, end_s: float) -> dict[str, dict[Share, float]]:
        """Seconds per share of each device in the window."""
        by_track: dict[str, list[Span]] = {track: [] for track in self.devices or self.tracks}
        for span in self._near(start_s, end_s):
            if span.track in by_track:
                by_track[span.track].append(span)
        return {track: occupancy(spans, start_s, end_s) for track, spans in by_track.items()}

    def _near(self, start_s: float, end_s: float) -> Iterator[Span]:
        """Gives the spans of each iteration that reaches into a window."""
        for key, (first_s, last_s) in self._windows.items():
            if first_s < end_s and last_s > start_s:
                yield from self._by_iteration[key]
