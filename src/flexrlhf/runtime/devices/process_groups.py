"""The world of a run: all its workers in one process group, found through a store."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from datetime import timedelta
from typing import Final

import psutil
import torch.distributed as dist

from flexrlhf.core.errors import WorkerLost
from flexrlhf.runtime.devices.work_order import DeviceKind, Meeting

_MEET_S: Final = 120.0
"""How long workers wait for each other before the first collective."""
_store: list[dist.TCPStore] = []


def open_store(host: str, num_ranks: int) -> int:
    """Opens the store on this worker and returns its port; it listens on `host` alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        num_ranks,
        is_master=True,
        timeout=timedelta(seconds=_MEET_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # by itself it would listen on every interface
    )
    _store.append(store)
    return store.port


def join_world(
    meeting: Meeting, rank: int, *, deadline_s: float, device: DeviceKind = "cpu"
) -> None:
    """Meets the other workers.

    Args:
        meeting: where.
        rank: of this worker.
        deadline_s: the longest that a collective may wait for another worker.
        device: what the workers compute on; collectives of GPUs go through NCCL.
    """
    num_ranks = len(meeting.addresses)
    os.environ["GLOO_SOCKET_IFNAME"] = _interface_of(_host_of(meeting.addresses[rank]))
    store = dist.TCPStore(
        meeting.store_host,
        meeting.store_port,
        num_ranks,
        is_master=False,
        timeout=timedelta(seconds=_MEET_S),
    )
    uses_nccl = device == "cuda" and not meeting.shares_gpu
    backend = "cpu:gloo,cuda:nccl" if uses_nccl else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=min(deadline_s, 86400.0)),
    )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _interface_of(host: str) -> str:
    """Returns the network interface that has an address of this machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == host for each in addresses):
            return name
    raise WorkerLost(
        f"No network interface of this machine has the address {host}.",
        "Workers talk over the interface by which Ray knows their machine.",
        "Look at `ip address`, and start Ray with --node-ip-address.",
    )


def leave_world() -> None:
    """Ends the process groups of this worker, and the store if it has it.

    Groups of gloo end when nobody refers to them, and until then each has a thread that looks for
    messages a hundred times a second. Models refer to them and to themselves, so they are collected
    now: by itself that may take many runs.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    _store.clear()
    forget_layouts()
    _forget_ways_between_layouts()
    gc.collect()


def forget_layouts() -> None:
    """Empties what DTensor remembers, thread by thread, of meshes and with them of process groups.

    The function for that is not promised: where a later torch has another, groups stay as long as
    it remembers them, which costs threads and nothing else.
    """
    if "torch.distributed.tensor" in sys.modules:  # or no tensor of this process was ever cut
        debug = importlib.import_module("torch.distributed.tensor.debug")
        getattr(debug, "_clear_sharding_prop_cache", _nothing)()


def _forget_ways_between_layouts() -> None:
    """Empties what all threads share, so nothing may use DTensor meanwhile."""
    redistribute = sys.modules.get("torch.distributed.tensor._redistribute")
    getattr(redistribute, "clear_redistribute_planner_cache", _nothing)()
    infos = getattr(redistribute, "_gen_transform_infos", None)
    getattr(infos, "cache_clear", _nothing)()


def _nothing() -> None:
    """Stands for a function that this torch does not have."""
