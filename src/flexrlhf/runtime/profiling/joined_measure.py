"""Measures the machines of a Ray cluster: how fast each is, and what joins each two of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Final

import torch

from flexrlhf.config.cluster import RayCluster
from flexrlhf.planning.costs.profiled.joined_machines import (
    JoinedLink,
    JoinedMachine,
    JoinedMachines,
)
from flexrlhf.runtime.devices.link_end import OneWay
from flexrlhf.runtime.devices.speed import measured_speed
from flexrlhf.runtime.ray_cluster.joined import joined_cluster
from flexrlhf.runtime.ray_cluster.processes import RayProcesses, kind_of
from flexrlhf.runtime.ray_cluster.remote_calls import RemoteCalls

_DEADLINE_S: Final = 120.0
"""Of what the machines do at one time."""
_SPELLS: Final = 3
"""Of computing: what else runs now and then slows one of them."""


def joined_machines(address: str) -> JoinedMachines:
    """Returns what one worker on each machine of a cluster finds.

    Links are measured at the same time only where no machine has part in two, so it takes a few
    seconds for each machine.

    Args:
        address: of the cluster, as `cluster.ray` has it.

    Raises:
        EngineMissing: Ray is not installed.
        ConfigError: there is no such cluster.
        WorkerLost: a machine did not start its worker, or lost it.
        TransferLost: a machine does not reach another.
    """
    processes = RayProcesses(address)
    try:
        cluster = joined_cluster(RayCluster(ray=address))
        alone = _alone_products_per_s()
        processes.start(
            [1] * len(cluster.nodes),
            kind=kind_of(cluster),
            machines=[node.address for node in cluster.nodes],
        )
        probes = _Probes(processes)
        speeds = probes.speeds()
        hosts = [host or "" for host in processes.hosts]
        machines = map(JoinedMachine, hosts, speeds)
        return JoinedMachines(alone, tuple(machines), tuple(probes.links(hosts)))
    finally:
        processes.close()


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Returns all pairs of so many machines, in rounds in which each has one peer at most.

    Each pair is taken by the first round that has room for it.
    """
    found: list[list[tuple[int, int]]] = []
    for pair in combinations(range(count), 2):
        for taken in found:
            if not set(pair) & {place for other in taken for place in other}:
                taken.append(pair)
                break
        else:
            found.append([pair])
    return found


def _alone_products_per_s() -> float:
    """Measures this process, which has as many threads as a worker meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return max(measured_speed(device) for _ in range(_SPELLS))
    finally:
        torch.set_num_threads(threads)


class _Probes:
    """A process on each machine."""

    def __init__(self, processes: RayProcesses) -> None:
        self._device = processes.device
        self._count = len(processes.members)
        name = "the worker on {}".format
        hosts = processes.hosts
        self._remote = RemoteCalls(processes, lambda r: name(hosts[r]), lambda _: "profile")
        secret = secrets.token_hex(16)
        self._ends = self._all("open_link", lambda rank: (hosts[rank], secret))

    def speeds(self) -> list[float]:
        """Lets all of them compute at the same time, and returns the best of each."""
        spells = [self._all("speed", lambda _: (self._device,)) for _ in range(_SPELLS)]
        return [max(speeds) for speeds in zip(*spells, strict=True)]

    def links(self, hosts: Sequence[str]) -> list[JoinedLink]:
        """Measures each pair, one way after the other."""
        own = [way.question_s for way in self._all("measure_link", lambda r: (self._ends[r],))]
        found: list[JoinedLink] = []
        for pairs in rounds(self._count):
            there = self._ways(pairs)
            back = self._ways([(b, a) for a, b in pairs])
            for (a, b), one, other in zip(pairs, there, back, strict=True):
                longer_s = min(one.question_s, other.question_s) - min(own[a], own[b])
                found.append(
                    JoinedLink(
                        (hosts[a], hosts[b]),
                        min(one.bytes_per_s, other.bytes_per_s),
                        max(0.0, longer_s / 2),
                    )
                )
        return found

    def _ways(self, pairs: Sequence[tuple[int, int]]) -> list[OneWay]:
        """Lets the first of each pair fetch from the second."""
        calls = [self._remote.call(a, "measure_link", "work", self._ends[b]) for a, b in pairs]
        return self._remote.values(calls, _DEADLINE_S)

    def _all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        ranks = range(self._count)
        calls = [self._remote.call(rank, method, "work", *arguments(rank)) for rank in ranks]
        return self._remote.values(calls, _DEADLINE_S)
