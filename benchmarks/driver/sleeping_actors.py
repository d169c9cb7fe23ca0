"""A Ray actor per device of a plan that sleeps through every task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from planned import Planned
from sleeping_host import SleepingHost

from flexrlhf.core.clock import WallClock
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.ray_cluster import session
from flexrlhf.runtime.ray_cluster.processes import HostProcess
from flexrlhf.runtime.ray_cluster.ray_workers import RayWorkers

_START_S: Final = 400.0
_GROUPS: Final = {"work": 1, "data": 1, "control": 1, "life": 1}


@contextmanager
def sleeping_actors(plan: Planned, seconds: Mapping[str, float]) -> Iterator[RayWorkers]:
    """Yields the driver's own workers, with processes that only sleep behind them.

    Args:
        plan: that is driven.
        seconds: of every task and transfer, by name.
    """
    import ray  # noqa: TID251  what is measured is how Ray is driven

    session.start_local(2)
    actor = ray.remote(num_cpus=0, concurrency_groups=_GROUPS)(SleepingHost)
    handles = [actor.remote(seconds) for _ in plan.plan.devices]
    try:
        launched: Any = SimpleNamespace(members=_started(ray, handles))
        yield RayWorkers(launched, DeviceMap(plan.plan, plan.spec), WallClock(0.0))
    finally:
        for handle in handles:
            ray.kill(handle)
        session.leave()


def _started(ray: Any, handles: list[Any]) -> list[HostProcess]:
    numbers = ray.get([handle.process_id.remote() for handle in handles], timeout=_START_S)
    lives = [handle.live.options(concurrency_group="life").remote() for handle in handles]
    return [
        HostProcess(handle, life, number, None)
        for handle, life, number in zip(handles, lives, numbers, strict=True)
    ]
