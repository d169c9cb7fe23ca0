"""Measures several processes on this machine, started through Ray as the workers of a run are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flexrlhf.core.machine import physical_cores
from flexrlhf.planning.costs.profiled.constants import MemoryConstants
from flexrlhf.planning.costs.profiled.worker_costs import (
    Crowd,
    GroupCost,
    ParcelCost,
    RoundTrip,
    ShardedCost,
    WeightCost,
    WorkerCosts,
)
from flexrlhf.runtime.profiling import smallest_run
from flexrlhf.runtime.profiling.worker_probe import WorkerProbe
from flexrlhf.runtime.ray_cluster import session

_RANKS: Final = (2, 4)
_PROBES: Final = max(_RANKS)
_DEADLINE_S: Final = 300.0
_CROWD_S: Final = 2.5
_LEAD_S: Final = 0.3
"""Until all processes are at their work."""
_TRIPS: Final = 60


def worker_costs(memory: MemoryConstants, say: Callable[[str], None]) -> WorkerCosts:
    """Returns what four processes with a thread each cost beside each other.

    Args:
        memory: of a process that has the machine to itself.
        say: hears what is measured next.

    Raises:
        EngineMissing: Ray is not installed.
    """
    say("workers: the memory of one, in a run of four tiny models")
    memory = replace(memory, process_bytes=smallest_run.worker_bytes())
    say("workers: processes of their own")
    session.start_local(_PROBES)
    try:
        probes = _Probes()
        cores = min(_PROBES, physical_cores())
        say("workers: how long work takes beside others")
        crowds = _crowds(probes)
        costs = probes.ask("costs", range(cores), memory)[0]
        say("workers: whole pieces of a run")
        wholes = probes.ask("whole_cost", None, costs, cores)[0]
        say("workers: collectives, parcels, weights, the driver")
        groups = tuple(_group(ranks, probes.ask("group_costs", None, ranks)) for ranks in _RANKS)
        peer = probes.addresses[1]
        parcels = ParcelCost(**probes.ask("parcel_costs", [0], peer)[0])
        weights = WeightCost(**probes.ask("weight_costs", [0], peer)[0])
        trips = tuple(RoundTrip(count, probes.round_trip_s(count)) for count in (1, *_RANKS))
        costs = replace(costs, wholes=wholes)
        return WorkerCosts(cores, costs, crowds, groups, parcels, weights, trips)
    finally:
        session.leave()


class _Probes:
    """The processes, which have met."""

    def __init__(self) -> None:
        import ray

        remote: Any = ray.remote(num_cpus=1)(WorkerProbe)
        self._handles = [remote.remote(rank) for rank in range(_PROBES)]
        self.addresses: list[str] = self.ask("address")
        (port,) = self.ask("open_store", [0], _PROBES)
        self.ask("join", None, _PROBES, port)

    def ask(self, method: str, ranks: Sequence[int] | range | None = None, *arguments: Any) -> Any:
        """Runs a method in some processes at once, in all unless said."""
        import ray

        chosen = range(_PROBES) if ranks is None else ranks
        calls = [getattr(self._handles[rank], method).remote(*arguments) for rank in chosen]
        return ray.get(calls, timeout=_DEADLINE_S)

    def round_trip_s(self, workers: int) -> float:
        """Returns the median seconds until so many processes have heard of a task and said so."""
        import ray

        taken: list[float] = []
        for _ in range(_TRIPS):
            start_s = time.perf_counter()
            waiting = [handle.nothing.remote() for handle in self._handles[:workers]]
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=_DEADLINE_S)
                ray.get(ready)
            taken.append(time.perf_counter() - start_s)
        return statistics.median(taken)


def _crowds(probes: _Probes) -> tuple[Crowd, ...]:
    counts = sorted({1, *_RANKS, min(_PROBES, physical_cores())})
    times: list[float] = []
    for count in counts:
        until_s = time.time() + _LEAD_S + _CROWD_S
        times.append(statistics.fmean(probes.ask("piece_s", range(count), until_s)))
    return tuple(
        Crowd(count, max(1.0, seconds / times[0]))
        for count, seconds in zip(counts, times, strict=True)
    )


def _group(ranks: int, found: Sequence[Mapping[str, float]]) -> GroupCost:
    """Takes the first process's numbers: all of them wait for each other."""
    seconds = found[0]

    def sharded(name: str) -> ShardedCost:
        return ShardedCost(seconds[f"{name}_layer_s"], seconds[f"{name}_byte_s"])

    return GroupCost(
        ranks,
        *(seconds[name] for name in ("message_s", "step_s", "sum_byte_s", "share_byte_s")),
        gathers=sharded("gathers"),
        trains=sharded("trains"),
        reduces=sharded("reduces"),
    )
