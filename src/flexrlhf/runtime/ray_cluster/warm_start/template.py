"""The driver's side of the process that workers are forked from."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from flexrlhf.runtime.ray_cluster.warm_start import launcher

LAUNCHER: Final = Path(launcher.__file__)
"""The program that Ray is to start as a worker."""
_BACKLOG: Final = 128
"""Launchers that may wait at once."""
_PROGRAM: Final = (
    "import socket, sys; "
    "from flexrlhf.runtime.ray_cluster.warm_start.template_process import main; "
    "main(socket.socket(fileno=int(sys.argv[1])), 0)"
)


class WorkerTemplate:
    """A process that begins to import what workers need, and forks them once it is asked.

    It ends with this process, and its forks with it.

    Raises:
        OSError: there can be none here, as where the path of a temporary folder is too long for a
            socket.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="flexrlhf-")  # open to its owner alone
        self._path = str(Path(self._folder, "template"))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            try:
                listener.bind(self._path)
            except OSError:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
            listener.listen(_BACKLOG)  # who asks while it still imports waits
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_threads()},
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which launchers find it."""
        return {launcher.SOCKET: self._path}

    @property
    def process_id(self) -> int:
        """The number of the process."""
        return self._process.pid

    def close(self) -> None:
        """Ends it and all forks that are left."""
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


def _threads() -> dict[str, str]:
    """Returns what Ray sets for a worker of one CPU, before anything reads it, and no less.

    numpy's library begins its threads at its import; a process with threads is not to be forked.
    """
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }
