"""The processes of a run's workers: reserved and started once, then used stage after stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flexrlhf.core.errors import PlanError, WorkerLost
from flexrlhf.runtime.ray_cluster import session
from flexrlhf.runtime.ray_cluster.device_host import DeviceHost
from flexrlhf.runtime.ray_cluster.seats import Kind, seats

_THREADS: Final = {"work": 1, "data": 4, "control": 2}
"""Of each process: one that computes, some that fetch, some that answer while it computes."""
_RESERVE_S: Final = 60.0
"""How long the cluster may take to reserve what it says is free."""
_START_S: Final = 180.0
"""How long processes may take to start and import torch."""


class RayProcesses:
    """Processes that stay until they are closed.

    Args:
        address: of the cluster to join; None for one of our own on this machine.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._groups: tuple[int, ...] = ()
        self._kind: Kind = "CPU"
        self._reserved: list[Any] = []
        self._started: list[Any] = []
        self._started_hosts: list[str | None] = []
        self.handles: list[Any] = []
        """One per worker of the run, by rank."""
        self.hosts: list[str | None] = []
        """Where peers reach each of them; None where all are on this machine."""

    def start(self, groups: Sequence[int], *, kind: Kind = "CPU", threads: int = 1) -> None:
        """Sees to it that there is a process for every worker; those that are there stay.

        On one machine any of them take part in any plan, and those without a part rest.

        Args:
            groups: workers of each node of the plan, in the order of their ranks.
            kind: what a worker occupies one of.
            threads: that each of them computes with.

        Raises:
            PlanError: the cluster has no room.
            WorkerLost: the processes did not start in time.
            ConfigError: there is no such cluster.
        """
        if not self._are_started(groups, kind):
            self._start(groups, kind, threads)
        self.handles = self._started[: sum(groups)]
        self.hosts = self._started_hosts[: sum(groups)]

    def _are_started(self, groups: Sequence[int], kind: Kind) -> bool:
        if not self._started or kind != self._kind:
            return False
        is_one_machine = all(host is None for host in self._started_hosts)
        return tuple(groups) == self._groups or (
            is_one_machine and sum(groups) <= len(self._started)
        )

    def _start(self, groups: Sequence[int], kind: Kind, threads: int) -> None:
        self._release()
        if self._address is None:
            session.start_local(sum(groups))
        else:
            session.join(self._address)
        places = seats(groups, session.nodes(), kind)
        self._groups, self._kind = tuple(groups), kind
        is_alone = len({place.node_id for place in places}) == 1 and self._address is None
        self._started_hosts = [None if is_alone else place.address for place in places]
        self._reserve([place.address for place in places])
        self._spawn([place.address for place in places], threads)

    def close(self) -> None:
        """Ends the processes and leaves the cluster."""
        self._release()
        session.leave()

    def _reserve(self, addresses: Sequence[str]) -> None:
        """Reserves a bundle per worker, one placement group per machine."""
        import ray
        from ray.util.placement_group import placement_group

        for address in dict.fromkeys(addresses):
            bundle = {"CPU": 1.0, f"node:{address}": 0.001}
            if self._kind == "GPU":
                bundle["GPU"] = 1.0
            count = addresses.count(address)
            self._reserved.append(placement_group([bundle] * count, strategy="STRICT_PACK"))
        ready = [group.ready() for group in self._reserved]
        done, waiting = ray.wait(ready, num_returns=len(ready), timeout=_RESERVE_S)
        del done
        if waiting:
            self._release()
            raise PlanError(
                f"The Ray cluster did not reserve {len(addresses)} workers within "
                f"{_RESERVE_S:g} s, though it said that they were free.",
                "Nobody else takes them meanwhile.",
                "Try again when other runs have ended; `ray status` shows who waits.",
            )

    def _spawn(self, addresses: Sequence[str], threads: int) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        groups = dict(zip(dict.fromkeys(addresses), self._reserved, strict=True))
        taken = dict.fromkeys(groups, 0)
        remote: Any = ray.remote  # its types do not know all of its options
        actor = remote(concurrency_groups=_THREADS)(DeviceHost)
        for address in addresses:
            strategy = PlacementGroupSchedulingStrategy(
                groups[address], placement_group_bundle_index=taken[address]
            )
            taken[address] += 1
            options = {"num_cpus": 1, "num_gpus": 1 if self._kind == "GPU" else 0}
            self._started.append(
                actor.options(**options, scheduling_strategy=strategy).remote(threads)
            )
        ready = [
            handle.describe.options(concurrency_group="control").remote()
            for handle in self._started
        ]
        _, waiting = ray.wait(ready, num_returns=len(ready), timeout=_START_S)
        if waiting:
            self._release()
            raise WorkerLost(
                f"{len(waiting)} of {len(ready)} worker processes did not start within "
                f"{_START_S:g} s.",
                "They import torch and wait for work.",
                "Look at the machine's load and at Ray's logs, then try again.",
            )

    def _release(self) -> None:
        if not self._started and not self._reserved:
            return
        import ray
        from ray.util.placement_group import remove_placement_group

        for handle in self._started:
            ray.kill(handle)
        for group in self._reserved:
            remove_placement_group(group)
        self._started, self._reserved, self.handles = [], [], []
