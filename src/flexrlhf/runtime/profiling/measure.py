"""Measures a machine: everything that a profile holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from flexrlhf.core.machine import memory
from flexrlhf.learning.training.memory import free_bytes, share_one_heap
from flexrlhf.planning.costs.profiled.constants import MemoryConstants, ProfiledCosts
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.runtime.machine import gpus, processor_name
from flexrlhf.runtime.profiling import held_memory, host_costs, smallest_run, speeds

_SOFTWARE = ("torch", "transformers")


def measure(environment: Mapping[str, Any], threads: int, say: Callable[[str], None]) -> Profile:
    """Returns the profile of the device on which `train` would run here.

    Memory comes first, since what is measured before makes the process grow.

    Args:
        environment: of this process, as `environment.json` has it.
        threads: that compute.
        say: hears what is measured next.
    """
    start_s = time.perf_counter()
    share_one_heap()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    costs = _costs(device, threads, say)
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
    return Profile(_device_name(device), threads, _memory_bytes(device), costs, made)


def _costs(device: torch.device, threads: int, say: Callable[[str], None]) -> ProfiledCosts:
    say("memory: a run of four tiny models, then what the allocator takes")
    process_bytes = smallest_run.process_bytes(threads)
    overhead = held_memory.allocator_overhead(device)
    copies = held_memory.logit_copies(device)
    say("the host's part: passes, layers, sequences, tasks")
    score = host_costs.pass_cost(host_costs.scoring, device)
    train = host_costs.pass_cost(host_costs.training, device)
    decode = host_costs.decode_cost(device)
    answer_s, barrier_s = host_costs.answer_s(device), host_costs.barrier_s()
    task_s, update = host_costs.task_s(), host_costs.update_cost(device)
    say("the speed of layers, of few rows, of logits, of memory")
    return ProfiledCosts(
        dtype="float32",
        task_s=task_s,
        answer_s=answer_s,
        barrier_s=barrier_s,
        score=score,
        train=train,
        decode=decode,
        widths=tuple(speeds.width_speed(w, score, train, device) for w in speeds.WIDTHS),
        rows=speeds.row_speeds(device),
        logits=speeds.logit_cost(device),
        update=update,
        memory=MemoryConstants(
            speeds.read_bandwidth(device),
            host_costs.cache_bandwidth(device),
            process_bytes,
            overhead,
            copies,
        ),
    )


def _device_name(device: torch.device) -> str:
    return gpus()[0].name if device.type == "cuda" else processor_name()


def _memory_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(gpus()[0].memory_bytes)
    state = memory()
    return float(state.total_bytes if state is not None else free_bytes(device))
