"""Runs a command on the first of several hosts that this machine plays, with Ray on all of them.

    python examples/hosts/hosts.py --mbit 100 -- flexrlhf train examples/hosts/ppo.yaml

Every host is a network namespace with an address of its own, 10.77.0.1 and so on, behind a link of
limited speed. Namespaces, links, Ray and its files belong to namespaces of this command: the kernel
removes all of them when it ends, however it does. Needs Linux, root, and the commands below.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from network import host_network
from ray_hosts import start_ray

COMMANDS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}
"""What is run, and the package that it is in."""
INSIDE = "--inside"
SKIPPED = 77
"""Exit status where this machine cannot play hosts, as test programs have it."""


def main() -> int:
    """Makes the hosts, runs the command, and returns its exit status."""
    arguments = _parser().parse_args()
    if arguments.inside:
        return _run_inside(arguments)
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    return _run_in_own_namespaces(sys.argv[1:])


def why_not() -> str | None:
    """Returns why this machine cannot play hosts; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, this is {sys.platform}."
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            return f"there is no command `{command}`; it is in the package {package}."
    if os.geteuid() != 0:
        return "only root may make network namespaces."
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return f"root may not make namespaces and bridges here ({tried.stderr.strip()})."
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=3, help="how many (3)")
    parser.add_argument("--cpus", type=int, default=1, help="that Ray has on each (1)")
    parser.add_argument(
        "--mbit", type=float, default=1000, help="limit of each link, each way, in Mbit/s (1000)"
    )
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", help="what to run on the first host, after --")
    return parser


def _run_in_own_namespaces(arguments: list[str]) -> int:
    """Starts this file once more as the first process of namespaces that end with it."""
    line = ["setpriv", "--pdeathsig", "KILL"]
    line += ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    line += [sys.executable, str(Path(__file__).resolve()), INSIDE, *arguments]
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    signal.signal(signal.SIGINT, _leave_to_command)
    process = subprocess.Popen(line)
    try:
        return process.wait()
    finally:
        process.kill()  # and with it whatever runs inside
        process.wait()


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _run_inside(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, _leave_to_command)
    hosts = host_network(arguments.hosts, arguments.mbit)
    environment = start_ray(hosts, arguments.cpus)
    speed = f"{arguments.mbit:g} Mbit/s"
    print(f"{len(hosts)} hosts, {', '.join(h.address for h in hosts)}, {speed} each", flush=True)
    process = subprocess.Popen(
        hosts[0].command(arguments.command), env={**os.environ, **environment}
    )
    status = process.wait()
    for host in hosts:
        sent, received = host.traffic()
        print(f"{host.address} sent {sent / 1e6:.1f} MB and received {received / 1e6:.1f} MB")
    return status


def _leave_to_command(number: int, frame: object) -> None:
    """Ctrl-C reaches the command too, which ends as it does without hosts."""


if __name__ == "__main__":
    sys.exit(main())
