"""The world of a run: all its workers in one process group, found through a store."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from flexrlhf.runtime.devices.work_order import Meeting

_MEET_S: Final = 120.0
"""How long workers wait for each other before the first collective."""
_store: list[dist.TCPStore] = []


def open_store(host: str, num_ranks: int) -> int:
    """Opens the store on this worker and returns its port."""
    store = dist.TCPStore(
        host,
        0,
        num_ranks,
        is_master=True,
        timeout=timedelta(seconds=_MEET_S),
        wait_for_workers=False,
    )
    _store.append(store)
    return store.port


def join_world(meeting: Meeting, rank: int, *, deadline_s: float) -> None:
    """Meets the other workers.

    Args:
        meeting: where.
        rank: of this worker.
        deadline_s: the longest that a collective may wait for another worker.
    """
    num_ranks = len(meeting.addresses)
    store = dist.TCPStore(
        meeting.store_host,
        meeting.store_port,
        num_ranks,
        is_master=False,
        timeout=timedelta(seconds=_MEET_S),
    )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=min(deadline_s, 86400.0)),
    )


def leave_world() -> None:
    """Ends the process groups of this worker, and the store if it has it."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _store.clear()
