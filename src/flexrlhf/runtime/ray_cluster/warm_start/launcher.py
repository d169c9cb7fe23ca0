"""What Ray starts as a worker: asks the template for a fork, or else becomes a worker itself.

Ray starts it as `python launcher.py [FLAGS] .../default_worker.py ARGUMENTS`, in place of its own
`setup_worker.py`. It imports nothing that takes time, and nothing of this package. The fork is the
worker; this process waits for its end, and the fork for the end of this one, so that to Ray they
are one.
"""

import array
import json
import os
import signal
import socket
import sys
from contextlib import suppress

SOCKET = "FLEXRLHF_WORKER_TEMPLATE"
"""Environment variable that names the template's socket."""
_PATIENCE_S = 45.0
"""How long the template may take; Ray itself gives a worker 60 s to report."""
_RUNTIME_ENVIRONMENT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
"""An argument for Ray's own program alone, as the one before."""
_WORKER = "default_worker.py"
_SETUP = "setup_worker.py"


def main() -> None:
    """Has the worker forked, or becomes it."""
    arguments = sys.argv[1:]
    if any(argument.startswith(_RUNTIME_ENVIRONMENT) for argument in arguments):
        worker = next(each for each in arguments if os.path.basename(each) == _WORKER)
        _become([os.path.join(os.path.dirname(worker), _SETUP), *arguments])
    arguments = [argument for argument in arguments if not argument.startswith(_LANGUAGE)]
    if path := os.environ.get(SOCKET):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
            if fork := _forked(template, path, arguments):
                _wait_for_end(template, fork)
                return
    _become(arguments)


def _become(arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(template: socket.socket, path: str, arguments: list[str]) -> int:
    """Returns the number of the fork that has taken over; 0 if none ever does."""
    told = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "launcher": os.getpid(),
    }
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    try:
        template.settimeout(_PATIENCE_S)
        template.connect(path)
        template.sendmsg([json.dumps(told).encode()], streams)
        fork = int(template.recv(16) or 0)
        if fork:
            template.send(b"go")
    except OSError:
        return 0
    return fork


def _wait_for_end(connection: socket.socket, fork: int) -> None:
    """Waits for it, and ends what it began, as Ray ends what is left of a worker's group."""
    connection.settimeout(None)
    with suppress(OSError):
        while connection.recv(16):
            pass
    with suppress(OSError):
        os.killpg(fork, signal.SIGKILL)


if __name__ == "__main__":
    main()
