"""Ray on every host: a head on the first, which the others join."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from network import Host

PORT = 6379
STORE_BYTES = 80_000_000
"""Of Ray's own store, about the least that it takes."""
START_S = 120


def start_ray(hosts: Sequence[Host], cpus: int) -> Mapping[str, str]:
    """Starts Ray and returns the variables under which it takes work.

    Args:
        hosts: of which the first is the head.
        cpus: that each of them offers.
    """
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "false",
    }
    head = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
    other = ["--address", f"{hosts[0].address}:{PORT}"]
    _wait(_start(hosts[0], cpus, head, variables))
    for process in [_start(host, cpus, other, variables) for host in hosts[1:]]:
        _wait(process)
    return variables


def _start(
    host: Host, cpus: int, role: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[str]:
    line = [str(Path(sys.executable).parent / "ray"), "start", *role]
    line += ["--node-ip-address", host.address, "--num-cpus", str(cpus)]
    line += ["--object-store-memory", str(STORE_BYTES)]
    line += ["--disable-usage-stats"]
    return subprocess.Popen(
        host.command(line),
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is the command's
    )


def _wait(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=START_S)
    if process.returncode:
        sys.exit(f"Ray did not start:\n{said}")
