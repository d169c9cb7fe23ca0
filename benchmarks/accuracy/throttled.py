"""Runs a generation-heavy job under two placements on two hosts behind slow links, in turns.

    python benchmarks/accuracy/throttled.py [--mbit 100] [--profile FILE] [--repeats 2]

This machine plays the hosts (examples/hosts), so it needs root on Linux. Links and speeds are what
`flexrlhf profile --ray auto` finds there; the predictions are made before the first run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from pairs import Pair, Ratio
from placement_bench import PlacementBench, facts, profiled, write_page
from placement_jobs import cases, write_files
from throttled_page import page

from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.machine import logical_cpus
from flexrlhf.planning.costs.profiled.profile import Profile, load_profile
from flexrlhf.runtime.profiling.joined_measure import joined_machines

ROOT: Final = Path(__file__).parents[2]
HOSTS: Final = ROOT / "examples" / "hosts" / "hosts.py"
_JOB: Final = "grpo"
_HOSTS: Final = 2
_AUTO: Final = "auto"
_INSIDE: Final = "--inside"


def main() -> int:
    """Makes the hosts, and measures on the first of them."""
    options = _options()
    if options.inside:
        _measure(options)
        return 0
    again = [sys.executable, str(Path(__file__).resolve()), _INSIDE, *sys.argv[1:]]
    line = [sys.executable, str(HOSTS), "--hosts", str(_HOSTS), "--mbit", f"{options.mbit:g}"]
    return subprocess.run([*line, "--", *again], check=False).returncode


def _measure(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="throttled-"))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    file = _joined_profile(folder, options.profile)
    write_files(folder)
    bench = PlacementBench(folder, file, options.iterations, ray=_AUTO)
    pair = _pair()
    predicted = [bench.predicted(case) for case in (pair.first, pair.second)]
    turns = [*zip((pair.first, pair.second), predicted, strict=True)] * options.repeats
    rows = list(bench.measured(turns))
    profile = load_profile(file)
    assert profile.joined is not None, "it was measured"
    given = [argument for argument in sys.argv[1:] if argument != _INSIDE]
    command = shlex.join(["benchmarks/accuracy/throttled.py", *given])
    document = facts(command, profile, time.monotonic() - began_s) | {
        "mbit": options.mbit,
        "links": [link.bytes_per_s for link in profile.joined.links],
        "speeds": [profile.joined.speed_of(each.address) for each in profile.joined.machines],
        "load": load,
        "cores": logical_cpus(),
        "ratio": Ratio.of(pair, rows).to_json(),
        "rows": [row.to_json() for row in rows],
    }
    write_page(options.page, document, page)


def _joined_profile(folder: Path, given: Path | None) -> Path:
    """Returns the file of a profile with the hosts' links; the rest may be given."""
    alone = load_profile(given if given is not None else profiled(folder))
    machines = joined_machines(_AUTO)
    joined: Profile = replace(alone, joined=machines)
    file = folder / "joined.yaml"
    file.write_text(write_yaml(joined.to_document()), encoding="utf-8")
    return file


def _pair() -> Pair:
    found = {case.name: case for case in cases() if case.job == _JOB and case.workers == _HOSTS}
    return Pair(
        "gather per layer and token against disaggregated",
        found["disaggregated 1+1, 1 part"],
        found["ZeRO-3 generation"],
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mbit", type=float, default=100, help="of each host's link (100)")
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "throttled.md")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
