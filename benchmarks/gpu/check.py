"""Runs this package on a GPU and on the CPU beside it, and says where they differ.

    python benchmarks/gpu/check.py [--device cuda|cpu]

Any interpreter with torch will do; nothing is downloaded or installed, and what needs a package
that is not there is skipped with that reason. Without a GPU all of it is skipped. `--device cpu`
runs the same parts on the CPU alone, in both layouts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from needs import PARTS, Part, missing
from place import environment, place

FOLDER = Path(__file__).resolve().parent
PART_S = 280.0
"""A part that takes longer has failed: all of them together take less."""


def main() -> int:
    """Runs every part that can be run; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=[part.name for part in PARTS], help="one part alone")
    options = parser.parse_args()
    reason, where = place(options.device)
    if reason:
        print(f"gpu-check: skipped: {reason}")
        return 0
    print(f"gpu-check: {where}, against the CPU", flush=True)
    began_s = time.monotonic()
    wanted = [part for part in PARTS if options.only in (None, part.name)]
    results = [_run(part, options.device) for part in wanted]
    words = ", ".join(f"{results.count(word)} {word}" for word in ("ok", "failed", "skipped"))
    print(f"gpu-check: {words}, {time.monotonic() - began_s:.0f} s")
    return 1 if "failed" in results else 0


def _run(part: Part, device: str) -> str:
    """Runs one part in a process of its own; returns `ok`, `failed` or `skipped`."""
    reason = missing(part.needs)
    if reason:
        print(f"{part.name}: skipped: {reason}", flush=True)
        return "skipped"
    print(f"{part.name}: {part.says}", flush=True)
    began_s = time.monotonic()
    command = [sys.executable, str(FOLDER / part.file), "--device", device]
    try:
        done = subprocess.run(command, env=environment(device), timeout=PART_S, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        print(f"  not done within {PART_S:g} s")
        code = 1
    word = "failed" if code else "ok"
    print(f"{part.name}: {word}, {time.monotonic() - began_s:.0f} s", flush=True)
    return word


if __name__ == "__main__":
    sys.exit(main())
