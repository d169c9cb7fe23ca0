"""Measures a machine: everything that a profile holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import torch

from flexrlhf.core.machine import memory
from flexrlhf.learning.training.memory import free_bytes, share_one_heap
from flexrlhf.planning.costs.profiled.constants import MemoryConstants, ProfiledCosts
from flexrlhf.planning.costs.profiled.joined_machines import JoinedMachines
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts
from flexrlhf.runtime.machine import gpus, processor_name
from flexrlhf.runtime.profiling import held_memory, smallest_run
from flexrlhf.runtime.profiling.device_costs import device_costs
from flexrlhf.runtime.profiling.joined_measure import joined_machines
from flexrlhf.runtime.profiling.whole_costs import whole_cost

_SOFTWARE = ("torch", "transformers")


def measure(
    environment: Mapping[str, Any],
    threads: int,
    say: Callable[[str], None],
    *,
    ray: str | None = None,
    with_workers: bool = True,
) -> Profile:
    """Returns the profile of the device on which `train` would run here.

    A cluster comes first, since there may be none; then memory, since what is measured before makes
    the process grow.

    Args:
        environment: of this process, as `environment.json` has it.
        threads: that compute.
        say: hears what is measured next.
        ray: address of a Ray cluster whose machines are measured too.
        with_workers: several processes are measured too, where they would share the CPU.

    Raises:
        ConfigError: there is no such cluster.
        FlexError: one of its machines failed.
    """
    start_s = time.perf_counter()
    joined = None if ray is None else _joined(ray, say)
    share_one_heap()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    costs = _costs(device, threads, say)
    workers = _workers(device, costs, say) if with_workers else None
    packages = environment.get("packages", {})
    made = {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seconds": round(time.perf_counter() - start_s, 1),
        "command": environment.get("command", ""),
        "system": environment.get("system", ""),
        "cores": environment.get("physical_cores"),
        "python": environment.get("python"),
        "flexrlhf": environment.get("commit", environment.get("flexrlhf")),
        **{name: packages[name] for name in _SOFTWARE if name in packages},
    }
    return Profile(
        _device_name(device), threads, _memory_bytes(device), costs, made, workers, joined
    )


def _costs(device: torch.device, threads: int, say: Callable[[str], None]) -> ProfiledCosts:
    say("memory: a run of four tiny models, then what the allocator takes")
    memory_constants = MemoryConstants(
        read_bandwidth=0.0,
        cache_bandwidth=0.0,
        process_bytes=smallest_run.process_bytes(threads),
        overhead=held_memory.allocator_overhead(device),
        logit_copies=held_memory.logit_copies(device),
    )
    costs = device_costs(device, memory_constants, say)
    say("whole pieces of a run")
    return replace(costs, wholes=whole_cost(costs, device))


def _workers(
    device: torch.device, costs: ProfiledCosts, say: Callable[[str], None]
) -> WorkerCosts | None:
    """Measures several processes where they would share the CPU, and Ray can start them."""
    if device.type != "cpu" or find_spec("ray") is None:
        return None
    from flexrlhf.runtime.profiling.worker_measure import worker_costs

    return worker_costs(costs.memory, say)


def _joined(address: str, say: Callable[[str], None]) -> JoinedMachines:
    """Measures a Ray cluster from a process of its own: this one has shown Ray another token."""
    say("machines: how fast each is, and the links between them")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(joined_machines, address).result()


def _device_name(device: torch.device) -> str:
    return gpus()[0].name if device.type == "cuda" else processor_name()


def _memory_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(gpus()[0].memory_bytes)
    state = memory()
    return float(state.total_bytes if state is not None else free_bytes(device))
