"""Workers of this machine alone are reached from this machine alone."""

from __future__ import annotations

import ipaddress

import psutil
import pytest
from placed_runs import PlacedRuns

pytestmark = pytest.mark.ray


def listening() -> set[str]:
    """Addresses on which this process and all that it started listen."""
    me = psutil.Process()
    found: set[str] = set()
    for process in (me, *me.children(recursive=True)):
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    inner = getattr(parsed, "ipv4_mapped", None)
    return (inner or parsed).is_loopback


def test_ray_workers_and_their_groups_listen_on_loopback_only(placed_runs: PlacedRuns):
    config, plan = placed_runs.plan(
        "ppo", 2, iterations=1, changes={"placement": {"strategy": "colocated"}}
    )
    placed_runs.on_workers(config, plan)  # whose workers stay, with their process groups
    addresses = listening()
    assert addresses
    assert {address for address in addresses if not is_loopback(address)} == set()
