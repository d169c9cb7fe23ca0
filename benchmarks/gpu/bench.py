"""Times generation and training of random models on a GPU, beside transformers and the limit.

    python benchmarks/gpu/bench.py [--device cuda|cpu] [--out FILE.json]

Any interpreter with torch and transformers will do; nothing is downloaded or installed. Without a
GPU it is skipped with that reason. `--device cpu` times a model next to nothing, to try it out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from needs import PARTS, missing
from place import environment, place

WORK = Path(__file__).resolve().parent / "speeds.py"
LONGEST_S = 290.0
BUDGET_S = 230.0
"""After so long no row is begun; the longest takes less than what is left."""


def main() -> int:
    """Times in a process of its own; returns its exit status, or 0 where it is skipped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="the rows as JSON")
    options = parser.parse_args()
    reason, where = place(options.device)
    reason = reason or missing(next(part for part in PARTS if part.name == "models").needs)
    if reason:
        print(f"gpu-bench: skipped: {reason}")
        return 0
    print(f"gpu-bench: {where}", flush=True)
    command = [sys.executable, str(WORK), "--device", options.device, "--budget", str(BUDGET_S)]
    command += [] if options.out is None else ["--out", str(options.out.resolve())]
    try:
        done = subprocess.run(
            command, env=environment(options.device), timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"gpu-bench: not done within {LONGEST_S:g} s")
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
