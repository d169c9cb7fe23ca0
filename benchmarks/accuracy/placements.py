"""Runs two small jobs under many placements, and writes what was predicted beside.

    python benchmarks/accuracy/placements.py [--profile FILE] [--only TEXT ...]

Constants come from `flexrlhf profile` alone: no placement that is measured has a part in them.
Predictions are made before the first run, with the lengths that the config expects. All runs use
the same processes; the plan that `placement: auto` chooses is run beside the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from placement_bench import PlacementBench, facts, profiled, write_page
from placement_jobs import Case, cases, write_files
from placements_page import page

from flexrlhf.planning.costs.profiled.profile import load_profile

RESULTS: Final = Path(__file__).parents[2] / "docs" / "results"


def main() -> None:
    """Measures this machine, predicts, runs, writes the page."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="placements-"))
    began_s = time.monotonic()
    file = options.profile or profiled(folder)
    profile = load_profile(file)
    write_files(folder)
    bench = PlacementBench(folder, file, options.iterations)
    chosen = [case for case in (*cases(), *bench.autos()) if _is_wanted(case, options.only)]
    predicted = [bench.predicted(case) for case in chosen]
    rows: list[dict[str, Any]] = []
    for row in bench.measured(list(zip(chosen, predicted, strict=True))):
        rows.append(row.to_json())
        document = facts("make placements", profile, time.monotonic() - began_s) | {"rows": rows}
        write_page(options.page, document, page)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=RESULTS / "placements.md")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of placements")
    return parser.parse_args()


def _is_wanted(case: Case, only: Sequence[str]) -> bool:
    name = f"{case.job} {case.workers} {case.name}"
    return not only or any(part in name for part in only)


if __name__ == "__main__":
    main()
