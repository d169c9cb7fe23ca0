"""The process that workers are forked from: has imported everything, and does nothing itself.

It has one thread and holds no lock, no connection and no device, so a fork of it is as good as a
process that has just imported the same. It ends when the process that began it does.
"""

from __future__ import annotations

import array
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path
from typing import Any, Final

_IMPORTED: Final = (
    "flexrlhf.runtime.ray_cluster.device_host",
    "flexrlhf.runtime.devices.device_worker",
)
_WORKER: Final = "default_worker.py"
_WORKER_MODULE: Final = "ray._private.workers.default_worker"
_RAYLET: Final = "RAY_RAYLET_PID"
_LARGEST: Final = 1 << 20
"""Bytes of a request."""
_GO_S: Final = 10.0
"""How long a launcher may take to answer its fork."""
_SET_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of `prctl`."""


def main(listener: socket.socket, life: int) -> None:
    """Serves launchers until `life` is closed at its other end.

    Args:
        listener: where launchers ask.
        life: the end of a pipe from the process that began this one.
    """
    if not _ends_with(life):
        return
    for module in _IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end leave nothing behind
    while True:
        with suppress(OSError, ValueError):
            connection, _ = listener.accept()
            with connection:
                told, streams = _request(connection)
                if told is not None:
                    _serve(connection, told, streams, (listener.fileno(), life))


def _ends_with(pipe: int) -> bool:
    """Lets the closing of a pipe end this process, even amid imports; says whether it is open."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    return not select.select([pipe], [], [], 0)[0]


def _request(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    connection.settimeout(_GO_S)
    streams = array.array("i")
    message, rights, _, _ = connection.recvmsg(_LARGEST, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, descriptors in rights:
        streams.frombytes(descriptors)
    told = json.loads(message) if message else None
    return told, list(streams)


def _serve(
    connection: socket.socket, told: dict[str, Any], streams: list[int], own: tuple[int, ...]
) -> None:
    """Forks a worker; its launcher hears nothing where that would not be safe."""
    try:
        if not _import_ray(told["environment"]):
            return
        if len(os.listdir("/proc/self/task")) != 1 or len(streams) != 3:
            return
        gc.freeze()  # what is here stays, and its pages stay shared
        template = os.getpid()
        if os.fork() == 0:
            for descriptor in own:
                os.close(descriptor)
            _become_worker(connection, told, streams, template)
    finally:
        for stream in streams:
            os.close(stream)


def _import_ray(environment: dict[str, str]) -> bool:
    """Imports Ray's worker as the first one would: it reads RAY_ variables while it does.

    Returns:
        Whether it is the Ray that asks. Workers of another would end, missing the raylet that they
        were imported for.
    """
    if _WORKER_MODULE not in sys.modules:
        os.environ.update({k: v for k, v in environment.items() if k.startswith("RAY_")})
        importlib.import_module(_WORKER_MODULE)
    return environment.get(_RAYLET) == os.environ.get(_RAYLET)


def _become_worker(
    connection: socket.socket, told: dict[str, Any], streams: list[int], template: int
) -> None:
    """Makes this fork what the launcher was to be, and runs Ray's worker in it; never returns."""
    status = 1
    try:
        _die_with(template)
        os.setsid()
        connection.send(b"%d" % os.getpid())
        if connection.recv(16) != b"go":
            os._exit(1)
        _take_over(told, streams)
        connection.settimeout(None)
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - there is nobody above
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with(template: int) -> None:
    CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != template:
        os._exit(1)


def _take_over(told: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with suppress(OSError):
        score = Path(f"/proc/{told['launcher']}/oom_score_adj").read_text(encoding="ascii")
        Path("/proc/self/oom_score_adj").write_text(score, encoding="ascii")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, told["blocked"])
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    arguments = told["arguments"]
    first = next(i for i, each in enumerate(arguments) if os.path.basename(each) == _WORKER)
    sys.argv = arguments[first:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    _seed()


def _seed() -> None:
    """Gives generators that were seeded by chance a chance of their own; torch's has a number."""
    import random

    import numpy as np

    random.seed()
    np.random.seed()


def _end_with(launcher: socket.socket) -> None:
    """Waits until the launcher ends, by which Ray means the worker and what it began."""
    with suppress(OSError):
        while launcher.recv(16):
            pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
