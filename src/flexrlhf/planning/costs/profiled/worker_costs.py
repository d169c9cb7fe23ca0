"""What several processes on one machine cost: each with one thread, sharing cores and memory.

Measured by `flexrlhf profile` on small pieces of the program itself, where Ray is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts


@dataclass(frozen=True, slots=True)
class Crowd:
    """How much longer the same work takes beside others."""

    processes: int
    """That compute at one time, each with one thread."""
    slowdown: float
    """Seconds by those of one process alone."""


@dataclass(frozen=True, slots=True)
class ShardedCost:
    """Seconds that a pass takes longer because weights or gradients are sharded."""

    layer_s: float
    """Per layer, its embeddings and heads together being one more."""
    byte_s: float
    """Per byte of the whole weights."""

    def seconds(self, layers: float, num_bytes: float) -> float:
        """Returns the seconds of one pass of a model."""
        return (layers + 1) * self.layer_s + num_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Collectives of so many processes."""

    ranks: int
    message_s: float
    """A sum over next to nothing in the middle of a pass, where each waits for the slowest."""
    step_s: float
    """What a step of the optimiser takes longer, however small the model: counts, norms, sums of
    metrics."""
    sum_byte_s: float
    """Per byte of what is added up everywhere."""
    share_byte_s: float
    """Per byte of a sum of which each process gets its rows, and gives all others new ones."""
    gathers: ShardedCost
    """A pass without gradients whose weights are sharded: ZeRO-3."""
    trains: ShardedCost
    """One with gradients, weights and gradients sharded: ZeRO-3."""
    reduces: ShardedCost
    """One with gradients, of which only the gradients are sharded: ZeRO-2."""


@dataclass(frozen=True, slots=True)
class ParcelCost:
    """What one process asks of another over TCP."""

    request_s: float
    byte_s: float
    sample_s: float
    """Packing and unpacking one sample."""


@dataclass(frozen=True, slots=True)
class WeightCost:
    """A version of weights on its way to another process."""

    pull_s: float
    """Finding out who holds what."""
    tensor_s: float
    """Per weight tensor."""
    byte_s: float
    """Checksums of both sides included."""
    install_byte_s: float


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """From the driver to the workers of a task and back."""

    workers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """Every constant of workers that share a machine."""

    cores: int
    """Processes that computed while `costs` was measured: all cores were busy."""
    costs: ProfiledCosts
    """Of one of them, with one thread."""
    crowds: tuple[Crowd, ...]
    """Ascending, the first of one process."""
    groups: tuple[GroupCost, ...]
    """Ascending."""
    parcels: ParcelCost
    weights: WeightCost
    round_trips: tuple[RoundTrip, ...]
    """Ascending."""

    def slowdown(self, processes: float) -> float:
        """Returns the seconds of work beside others, by those of `costs`."""
        return self._alone(processes) / self._alone(self.cores)

    def _alone(self, processes: float) -> float:
        points = [(float(crowd.processes), crowd.slowdown) for crowd in self.crowds]
        return _along(points, processes)

    def speed(self, device: DeviceType) -> float:
        """Returns how fast a device of a joined machine is by the process that was measured."""
        return device.peak_flops(self.costs.dtype) / self.costs.most_flops

    def group(self, ranks: int) -> GroupCost:
        """Returns what so many processes cost: as the next larger group, or in proportion."""
        for cost in self.groups:
            if ranks <= cost.ranks:
                return cost
        last = self.groups[-1]
        factor = ranks / last.ranks
        return GroupCost(
            ranks=ranks,
            message_s=factor * last.message_s,
            step_s=factor * last.step_s,
            sum_byte_s=factor * last.sum_byte_s,
            share_byte_s=factor * last.share_byte_s,
            gathers=_scaled(last.gathers, factor),
            trains=_scaled(last.trains, factor),
            reduces=_scaled(last.reduces, factor),
        )

    def task_s(self, workers: int) -> float:
        """Returns the seconds by which a task of so many workers begins late and is known late."""
        return _along([(float(trip.workers), trip.seconds) for trip in self.round_trips], workers)

    def faster(self, compute: float = 1.0, communication: float = 1.0) -> WorkerCosts:
        """Returns a machine with faster cores, or with faster ways between its processes."""
        return replace(
            self,
            costs=self.costs.faster(compute),
            groups=tuple(_faster(group, communication) for group in self.groups),
            parcels=replace(self.parcels, byte_s=self.parcels.byte_s / communication),
            weights=replace(self.weights, byte_s=self.weights.byte_s / communication),
        )


def _faster(group: GroupCost, factor: float) -> GroupCost:
    def bytes_faster(part: ShardedCost) -> ShardedCost:
        return replace(part, byte_s=part.byte_s / factor)

    return replace(
        group,
        sum_byte_s=group.sum_byte_s / factor,
        share_byte_s=group.share_byte_s / factor,
        gathers=bytes_faster(group.gathers),
        trains=bytes_faster(group.trains),
        reduces=bytes_faster(group.reduces),
    )


def _scaled(part: ShardedCost, factor: float) -> ShardedCost:
    return ShardedCost(part.layer_s * factor, part.byte_s * factor)


def _along(points: Sequence[tuple[float, float]], at: float) -> float:
    """Goes straight between points; beyond the last one on from zero through it."""
    if at <= points[0][0]:
        return points[0][1]
    for (low, first), (high, second) in pairwise(points):
        if at <= high:
            return first + (second - first) * (at - low) / (high - low)
    return points[-1][1] * at / points[-1][0]
