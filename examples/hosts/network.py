"""Hosts on one machine: network namespaces behind links of limited speed, on one bridge."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = Path("/run/netns")
RAY_FILES = Path("/tmp/ray")
"""Where Ray keeps its session; every host has one of its own."""
BRIDGE = "bridge"
OUTER_LINK = "eth0"
BURST_BYTES = 64 * 1024
"""What may pass at once at full speed: a link's buffer cannot be smaller than one packet."""
QUEUE_MS = 400


@dataclass(frozen=True)
class Host:
    """One network namespace."""

    name: str
    address: str
    files: Path
    """Its folder of Ray's sessions."""

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs `command` here."""
        enter = ["ip", "netns", "exec", self.name, "sh", "-c"]
        own_files = f'mount --bind "$0" {RAY_FILES} && exec "$@"'  # seen by this command alone
        return [*enter, own_files, str(self.files), *command]

    def traffic(self) -> tuple[int, int]:
        """Returns the bytes that it sent to other hosts and received from them."""
        counters = Path("/sys/class/net") / OUTER_LINK / "statistics"
        read = ["ip", "netns", "exec", self.name, "cat"]
        read += [str(counters / "tx_bytes"), str(counters / "rx_bytes")]
        sent, received = subprocess.check_output(read, text=True).split()
        return int(sent), int(received)


def host_network(count: int, mbit: float) -> list[Host]:
    """Makes hosts that reach each other; call it in network and mount namespaces of its own.

    Args:
        count: hosts.
        mbit: limit of each host's link, in each direction, in Mbit/s.
    """
    for folder in (NAMES, RAY_FILES):
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "link", "set", BRIDGE, "up")
    hosts: list[Host] = []
    for number in range(1, count + 1):
        host = Host(f"host-{number}", f"10.77.0.{number}", RAY_FILES / f"host-{number}")
        host.files.mkdir()
        _join(host, f"link-{number}", mbit)
        hosts.append(host)
    return hosts


def _join(host: Host, link: str, mbit: float) -> None:
    """Makes a host's namespace and its link to the bridge."""
    inside = ("ip", "-n", host.name)
    _run("ip", "netns", "add", host.name)
    _run(*inside, "link", "set", "lo", "up")
    _run("ip", "link", "add", link, "type", "veth", "peer", OUTER_LINK, "netns", host.name)
    _run("ip", "link", "set", link, "master", BRIDGE, "up")
    _run(*inside, "address", "add", f"{host.address}/24", "dev", OUTER_LINK)
    _run(*inside, "link", "set", OUTER_LINK, "up")
    limit = ["root", "tbf", "rate", f"{round(mbit * 1000)}kbit"]
    limit += ["burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms"]
    _run("tc", "qdisc", "add", "dev", link, *limit)
    _run("tc", "-n", host.name, "qdisc", "add", "dev", OUTER_LINK, *limit)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
