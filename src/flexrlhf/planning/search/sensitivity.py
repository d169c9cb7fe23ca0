"""What a plan would gain from more of one thing: that is what bounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.placement.plan import Bound, Plan
from flexrlhf.planning.search.evaluation import Evaluation, evaluate
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.worker_run import WorkerRun

TIE: Final = 0.03
"""Differences below this are ties: published runs differ by as much."""
_FACTOR: Final = 2.0
_NOTABLE: Final = 1.1
"""Gain from memory that makes it what bounds a plan. Any work gains from faster devices, so their
factor is no measure for it."""


@dataclass(frozen=True, slots=True)
class Gains:
    """By what factor iterations would be faster with twice of one thing; 1 is no gain."""

    compute: float
    """Twice the FLOP/s and memory bandwidth of every device."""
    memory: float
    """Twice the memory of every device."""
    communication: float
    """Twice the bandwidth of every link."""
    scheduling: float
    """No device ever idle: the bubble taken away, at equal work."""

    @property
    def bound_by(self) -> Bound:
        """Memory where it helps by a tenth, else the thing that would help most."""
        if self.memory >= _NOTABLE:
            return "memory"
        others: tuple[Bound, ...] = ("compute", "communication", "scheduling")
        return max(others, key=self.of)

    def of(self, bound: Bound) -> float:
        """Returns the gain from twice of what bounds a plan."""
        return {
            "compute": self.compute,
            "memory": self.memory,
            "communication": self.communication,
            "scheduling": self.scheduling,
        }[bound]


def gains_of(request: PlanRequest, evaluation: Evaluation, wanted: Plan) -> Gains:
    """Returns what a plan that fits would gain.

    Args:
        request: what is placed.
        evaluation: of the plan.
        wanted: the plan as it was asked for, without the micro-batches that were found.
    """
    predicted = evaluation.plan.predicted
    assert predicted is not None

    def gain(cluster: Cluster, workers: WorkerRun | None = request.workers) -> float:
        changed = replace(request, cluster=cluster, workers=workers)
        found = evaluate(changed, wanted).plan.predicted
        # More of a thing may fill passes otherwise; what does not help can be left unused.
        return 1.0 if found is None else max(1.0, predicted.iteration_s / found.iteration_s)

    return Gains(
        compute=gain(with_faster_devices(request.cluster), _faster_cores(request.workers)),
        memory=gain(with_more_memory(request.cluster)),
        communication=gain(
            with_faster_links(request.cluster, _FACTOR), _faster_ways(request.workers)
        ),
        scheduling=1.0 / max(1.0 - predicted.shares.get("bubble", 0.0), 1e-9),
    )


def _faster_cores(workers: WorkerRun | None) -> WorkerRun | None:
    return None if workers is None else workers.faster(compute=_FACTOR)


def _faster_ways(workers: WorkerRun | None) -> WorkerRun | None:
    return None if workers is None else workers.faster(communication=_FACTOR)


def with_faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Returns the cluster with `factor` times the bandwidth on every link."""

    def faster(link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth * factor)

    return Cluster(
        tuple(replace(node, link=faster(node.link)) for node in cluster.nodes),
        {pools: faster(link) for pools, link in cluster.between.items()},
    )


def with_faster_devices(cluster: Cluster) -> Cluster:
    """Returns the cluster with twice the FLOP/s and memory bandwidth in every device."""
    return _with_devices(cluster, _faster)


def with_more_memory(cluster: Cluster) -> Cluster:
    """Returns the cluster with twice the memory in every device."""
    return _with_devices(cluster, _larger)


def _with_devices(cluster: Cluster, change: Callable[[DeviceType], DeviceType]) -> Cluster:
    return Cluster(
        tuple(replace(node, device=change(node.device)) for node in cluster.nodes), cluster.between
    )


def _faster(device: DeviceType) -> DeviceType:
    return replace(
        device,
        flops={dtype: value * _FACTOR for dtype, value in device.flops.items()},
        memory_bandwidth=device.memory_bandwidth * _FACTOR,
    )


def _larger(device: DeviceType) -> DeviceType:
    return replace(device, memory_bytes=int(device.memory_bytes * _FACTOR))
