"""The processes of a run's workers: reserved and started once, then used stage after stage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from flexrlhf.config.cluster import ClusterSetting, RayCluster
from flexrlhf.core.errors import PlanError, WorkerLost
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.setting import CORE
from flexrlhf.runtime.ray_cluster import session
from flexrlhf.runtime.ray_cluster.device_host import DeviceHost
from flexrlhf.runtime.ray_cluster.seats import seats
from flexrlhf.runtime.ray_cluster.session import Kind
from flexrlhf.runtime.ray_cluster.warm_start.template import WorkerTemplate

if TYPE_CHECKING:
    from flexrlhf.runtime.devices.work_order import DeviceKind  # with which torch would come

_THREADS: Final = {"work": 1, "data": 4, "control": 2, "life": 1}
"""Of each process: one that computes, some that fetch, some that answer while it computes."""
_SETTLE_S: Final = 10.0
"""How long a cluster may take to notice that what was taken is free again."""
_LOOK_S: Final = 0.5
_RESERVE_S: Final = 60.0
"""How long the cluster may take to reserve what it says is free."""
_START_S: Final = 180.0
"""How long processes may take to start and import torch."""


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process that waits for work."""

    handle: Any
    """Ray's."""
    life: Any
    """Reference that is ready when the process has ended."""
    process_id: int
    host: str | None
    """Where peers reach it; None where all are on this machine."""


class RayProcesses:
    """Processes that stay until they are closed.

    Args:
        address: of the cluster to join; None for one of our own on this machine.
        kind: what workers of our own will occupy; those on CPUs are forks of one process, which
            begins to import at once.

    Raises:
        EngineMissing: Ray is not installed.
    """

    def __init__(self, address: str | None = None, kind: Kind = "CPU") -> None:
        session.require_ray()
        self._address = address
        self._groups: tuple[int, ...] = ()
        self._kind: Kind = kind
        self._reserved: list[Any] = []
        self._started: list[HostProcess] = []
        self._early: Future[None] | None = None
        self._starter: ThreadPoolExecutor | None = None
        self._is_closing = False
        self._template = _template() if address is None and kind == "CPU" else None
        self._template_serves = False
        self.members: list[HostProcess] = []
        """One per worker of the run, by rank."""

    @property
    def hosts(self) -> list[str | None]:
        """Where peers reach each of them; None where all are on this machine."""
        return [member.host for member in self.members]

    @property
    def device(self) -> DeviceKind:
        """What each of them computes on."""
        return "cuda" if self._kind == "GPU" else "cpu"

    def start_early(self, groups: Sequence[int], *, kind: Kind = "CPU", threads: int = 1) -> None:
        """Begins to start processes beside whatever else goes on; `start` then waits for them."""
        # Ray's processes end with the thread that started them, so it stays until `close`.
        self._starter = ThreadPoolExecutor(1, "starts processes")
        self._early = self._starter.submit(self._start, groups, kind, threads)

    def start(
        self,
        groups: Sequence[int],
        *,
        kind: Kind = "CPU",
        threads: int = 1,
        machines: Sequence[str | None] = (),
    ) -> None:
        """Sees to it that there is a process for every worker; those that are there stay.

        On one machine any of them take part in any plan, and those without a part rest.

        Args:
            groups: workers of each node of the plan, in the order of their ranks.
            kind: what a worker occupies one of.
            threads: that each of them computes with.
            machines: addresses of those that the plan means for its nodes; empty for any.

        Raises:
            PlanError: the cluster has no room.
            WorkerLost: the processes did not start in time.
            ConfigError: there is no such cluster.
        """
        if self._early is not None:
            early, self._early = self._early, None
            early.result(_SETTLE_S + _RESERVE_S + _START_S)
        if not self._are_started(groups, kind):
            self._start(groups, kind, threads, machines)
        self.members = self._started[: sum(groups)]

    def close(self) -> None:
        """Ends the processes and leaves the cluster."""
        self._is_closing = True
        if self._early is not None:
            wait([self._early], _SETTLE_S + _RESERVE_S + _START_S)
        try:
            self._release()
        finally:
            session.leave()
            if self._template is not None:
                self._template.close()
            if self._starter is not None:
                self._starter.shutdown(wait=False)

    def _are_started(self, groups: Sequence[int], kind: Kind) -> bool:
        if not self._started or kind != self._kind:
            return False
        is_one_machine = all(process.host is None for process in self._started)
        return tuple(groups) == self._groups or (
            is_one_machine and sum(groups) <= len(self._started)
        )

    def _unused_template(self) -> WorkerTemplate | None:
        """Returns a template for a Ray that starts: the first, or another in its place."""
        if self._template_serves:
            if self._template is not None:
                self._template.close()
            self._template = _template()
        self._template_serves = True
        return self._template

    def _start(
        self, groups: Sequence[int], kind: Kind, threads: int, machines: Sequence[str | None] = ()
    ) -> None:
        self._release()
        if self._address is None:
            session.start_local(sum(groups), self._unused_template if kind == "CPU" else None)
        else:
            session.join(self._address)
        addresses = [place.address for place in self._seats(groups, kind, machines)]
        self._groups, self._kind = tuple(groups), kind
        self._reserve(addresses)
        handles = self._spawned(addresses, threads)
        hosts = [None if self._address is None else address for address in addresses]
        numbers = self._ready(handles)
        self._started = [
            HostProcess(handle, _on(handle, "live", "life"), number, host)
            for handle, number, host in zip(handles, numbers, hosts, strict=True)
        ]

    @staticmethod
    def _seats(
        groups: Sequence[int], kind: Kind, machines: Sequence[str | None]
    ) -> list[session.RayNode]:
        """Returns a machine per worker; what was just given back may take a moment to be free."""
        until_s = time.monotonic() + _SETTLE_S
        while True:
            try:
                return seats(groups, session.nodes(), kind, machines)
            except PlanError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(_LOOK_S)

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
        _, waiting = ray.wait(ready, num_returns=len(ready), timeout=_RESERVE_S)
        if waiting:
            self._release()
            raise PlanError(
                f"The Ray cluster did not reserve {len(addresses)} workers within "
                f"{_RESERVE_S:g} s, though it said that they were free.",
                "Nobody else takes them meanwhile.",
                "Try again when other runs have ended; `ray status` shows who waits.",
            )

    def _spawned(self, addresses: Sequence[str], threads: int) -> list[Any]:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        groups = dict(zip(dict.fromkeys(addresses), self._reserved, strict=True))
        taken = dict.fromkeys(groups, 0)
        remote: Any = ray.remote  # its types do not know all of its options
        actor = remote(concurrency_groups=_THREADS)(DeviceHost)
        handles: list[Any] = []
        for address in addresses:
            strategy = PlacementGroupSchedulingStrategy(
                groups[address], placement_group_bundle_index=taken[address]
            )
            taken[address] += 1
            options = {"num_cpus": 1, "num_gpus": 1 if self._kind == "GPU" else 0}
            handles.append(actor.options(**options, scheduling_strategy=strategy).remote(threads))
        return handles

    def _ready(self, handles: Sequence[Any]) -> list[int]:
        """Waits until all processes answer, and returns their numbers."""
        import ray
        from ray.exceptions import RayError

        ready = [_on(handle, "process_id", "control") for handle in handles]
        waiting, until_s = ready, time.monotonic() + _START_S
        while waiting and not self._is_closing and time.monotonic() < until_s:
            _, waiting = ray.wait(ready, num_returns=len(ready), timeout=_LOOK_S)
        try:
            if not waiting:
                return list(ray.get(ready))
        except RayError as error:
            self._release()
            raise WorkerLost(
                f"A worker process did not start: {str(error).strip().splitlines()[-1]}",
                "On every machine of the cluster, worker processes import torch and flexrlhf.",
                "Install the same versions of flexrlhf[train,ray] on all of them.",
            ) from error
        self._release()
        raise WorkerLost(
            f"{len(waiting)} of {len(ready)} worker processes did not start within {_START_S:g} s.",
            "They import torch and wait for work.",
            "Look at the machine's load and at Ray's logs, then try again.",
        )

    def _release(self) -> None:
        if not self._started and not self._reserved:
            return
        import ray
        from ray.util.placement_group import remove_placement_group

        for process in self._started:
            ray.kill(process.handle)
        for group in self._reserved:  # whoever sits on it ends too
            remove_placement_group(group)
        self._started, self._reserved, self.members = [], [], []


def _template() -> WorkerTemplate | None:
    """Returns what workers are forked from; None where there can be none, and each begins anew."""
    with suppress(OSError):
        return WorkerTemplate()
    return None


def _on(handle: Any, method: str, group: str) -> Any:
    """Calls a method that takes nothing, in a thread group of the process."""
    return getattr(handle, method).options(concurrency_group=group).remote()


@contextmanager
def worker_processes(
    setting: ClusterSetting, cluster: Cluster | None, threads: int | Literal["auto"]
) -> Iterator[RayProcesses | None]:
    """The processes of a run's workers until the block ends; none where one device runs it.

    On this machine they begin to start at once, while the run is planned and its rows are read.

    Args:
        setting: `cluster` of the config.
        cluster: the machines; None for one device here.
        threads: that each worker computes with.

    Raises:
        EngineMissing: Ray is not installed.
    """
    if cluster is None or cluster.num_devices == 1:
        yield None
        return
    address = setting.ray if isinstance(setting, RayCluster) else None
    processes = RayProcesses(address, kind_of(cluster))
    try:
        if address is None:
            groups = [len(node.devices) for node in cluster.nodes]
            count = 1 if threads == "auto" else threads
            session.import_ray()  # beside a search each would slow the other down
            processes.start_early(groups, kind=kind_of(cluster), threads=count)
        yield processes
    finally:
        processes.close()


def kind_of(cluster: Cluster) -> Kind:
    """Returns what a worker of a cluster occupies."""
    return "CPU" if cluster.nodes[0].device.name == CORE else "GPU"
