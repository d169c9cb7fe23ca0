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
ATTEMPTS = 3
"""Ray gives up where a busy machine takes half a minute to answer."""


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
    _start(hosts[0], cpus, head, variables)
    for host in hosts[1:]:
        _start(host, cpus, other, variables)
    return variables


def _start(host: Host, cpus: int, role: Sequence[str], variables: Mapping[str, str]) -> None:
    line = [str(Path(sys.executable).parent / "ray"), "start", *role]
    line += ["--node-ip-address", host.address, "--num-cpus", str(cpus)]
    line += ["--object-store-memory", str(STORE_BYTES), "--disable-usage-stats"]
    for _ in range(ATTEMPTS):
        started = subprocess.run(
            host.command(line),
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is the command's
            timeout=START_S,
            check=False,
        )
        if started.returncode == 0:
            return
    sys.exit(f"Ray did not start on {host.address}:\n{started.stdout}")
