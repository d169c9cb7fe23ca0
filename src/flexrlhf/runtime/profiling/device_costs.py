"""Every constant of one process that computes: its own part of passes, and its device's speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from flexrlhf.planning.costs.profiled.constants import MemoryConstants, ProfiledCosts
from flexrlhf.runtime.profiling import host_costs, speeds


def device_costs(
    device: torch.device, memory: MemoryConstants, say: Callable[[str], None]
) -> ProfiledCosts:
    """Returns the constants of this process.

    Args:
        device: that computes.
        memory: bytes that were measured before; the speeds in it are measured here.
        say: hears what is measured next.
    """
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
        memory=replace(
            memory,
            read_bandwidth=speeds.read_bandwidth(device),
            cache_bandwidth=host_costs.cache_bandwidth(device),
        ),
    )
