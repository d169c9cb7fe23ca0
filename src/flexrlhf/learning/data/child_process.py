"""Runs code that must not share our process, in a child that may hang, crash or be killed.

Parent and child exchange Python literals, one a line: numbers, texts, tuples, lists, dicts and sets
keep their types, and nothing that is received gets executed.
"""

from __future__ import annotations

import ast
import contextlib
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flexrlhf.core.errors import DataError

_MEMORY_BYTES = 8 * 2**30
"""Address space of a child; an answer such as [0] * 10**12 must not drive the trainer out."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the order of a set of texts must not differ between runs
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class ChildDied(Exception):
    """The child crashed, or was ended at its deadline, before it answered."""


class ChildProcess:
    """A Python process that answers requests one at a time.

    It starts with the first request, starts again after a death, and ends with this object. Any
    thread may ask.

    Args:
        module: run with `python -m`; it calls `serve`.
        arguments: its command line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-P", "-W", "ignore", "-m", module, *arguments]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stop: Callable[[], object] = lambda: None

    def ask(self, request: object) -> Any:
        """Returns the child's answer.

        Raises:
            DataError: the child refused the request with this error.
            ChildDied: it ended without answering.
        """
        with self._lock:
            line = self._exchange(ascii(as_literal(request)))
            if not line.endswith("\n"):
                self._end()
                raise ChildDied
        outcome, value = ast.literal_eval(line)
        if outcome == "refused":
            raise DataError(*value)
        return value

    def close(self) -> None:
        """Ends the child; a later request starts another."""
        with self._lock:
            self._end()

    def _exchange(self, line: str) -> str:
        """Sends a line and returns the reply, empty when the child is gone."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="ascii",
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # Ctrl-C is the parent's business
        )
        self._stop = weakref.finalize(self, _end_process, self._process)
        return self._process

    def _end(self) -> None:
        self._stop()
        self._process = None


def _end_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # what was not yet sent is lost
            pipe.close()


def serve(answer: Callable[[Any], object], *, deadline_s: float = 0.0) -> None:
    """Answers requests from the parent until it is gone; the child's main loop.

    Args:
        answer: turns a request into an answer made of literals; a DataError goes to the parent.
        deadline_s: seconds after which the kernel ends this process in the middle of a request,
            whatever code it is in; 0 for no limit.
    """
    requests = os.fdopen(os.dup(0), encoding="ascii")
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # foreign code may read and print
    os.dup2(2, 1)
    _limit_memory()
    for line in requests:
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        try:
            reply = ("answered", as_literal(answer(ast.literal_eval(line))))
        except DataError as error:
            reply = ("refused", (error.wrong, error.right, error.do))
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        replies.write(ascii(reply) + "\n")
        replies.flush()


def _limit_memory() -> None:
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY_BYTES if most == resource.RLIM_INFINITY else min(_MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def as_literal(value: object) -> Any:
    """Returns `value` built of Python literals; what cannot be one becomes its text."""
    if isinstance(value, Mapping):
        return {as_literal(key): as_literal(item) for key, item in value.items()}
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return kind(as_literal(item) for item in value)
    if isinstance(value, np.generic | np.ndarray):
        return as_literal(value.tolist())
    if value is None or isinstance(value, bytes | int):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)
