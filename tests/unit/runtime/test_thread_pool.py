"""After a thread let its pool go, it computes as before; a child process counts its threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import os, ctypes, torch
from flexrlhf.runtime import thread_pool
torch.set_num_threads(3)
def threads():
    torch.ones(4_000_000).sum()
    return len(os.listdir("/proc/self/task"))
before = threads()
thread_pool.let_go()
between = len(os.listdir("/proc/self/task"))
has_pause = hasattr(ctypes.CDLL(None), "omp_pause_resource_all")
print(before - between if has_pause else 2, threads() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_the_pool_ends_and_comes_back_when_it_is_needed():
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["2", "0"]
