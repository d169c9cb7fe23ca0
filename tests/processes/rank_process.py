"""Imports torch once, forks the ranks of a `ProcessPool`, and runs in each what it is sent.

Each line of its standard input asks for a world: the number of ranks, and a folder for the world's
store and logs with a socket `door`, to which every rank connects.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor
from transformers.models.gpt2 import modeling_gpt2  # noqa: F401 (imported before the fork)
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

_COLLECTIVE_DEADLINE = timedelta(seconds=120)


@cache
def _module(file: str) -> ModuleType:
    """Loads a file; test files are in no package."""
    name = f"rank_code_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(rank: int, size: int, folder: Path) -> None:
    log = (folder / f"stderr-{rank}").open("w")
    os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=log)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=_COLLECTIVE_DEADLINE,
    )
    door = socket.socket(socket.AF_UNIX)
    door.connect(f"{folder}/door")
    connection = Connection(door.detach())
    connection.send_bytes(json.dumps({"rank": rank, "pid": os.getpid()}).encode())
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(_answer(request).encode())


def _answer(request: dict[str, Any]) -> str:
    try:
        function = getattr(_module(request["file"]), request["function"])
        return json.dumps({"result": function(**request["arguments"])})
    except BaseException:  # noqa: BLE001 (the test gets to see it)
        return json.dumps({"error": traceback.format_exc()})


def main() -> None:
    """Forks the ranks of a new world for every line of the standard input, until it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the ranks
    gc.freeze()  # no rank looks through what was imported each time that it collects
    for line in sys.stdin:
        size, folder = line.split()
        for rank in range(int(size)):
            if os.fork() == 0:
                sys.stdin.close()
                _serve(rank, int(size), Path(folder))
                os._exit(0)


if __name__ == "__main__":
    main()
