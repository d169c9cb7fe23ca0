"""Runs pairs of placements in turns, and writes how much faster one is, measured and predicted.

    python benchmarks/accuracy/ratios.py [--profile FILE] [--repeats 3] [--only TEXT ...]

Both placements of a pair run in turns on the same processes: the machine's drift falls out of their
quotient. Constants come from `flexrlhf profile`, predictions are made before the first run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pairs import PAIRS, Pair, Ratio
from placement_bench import PlacementBench, facts, profiled, write_page
from placement_jobs import Case, write_files
from ratios_page import page

from flexrlhf.planning.costs.profiled.profile import load_profile

RESULTS: Final = Path(__file__).parents[2] / "docs" / "results"


def main() -> None:
    """Measures this machine, predicts, runs, writes the page."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="ratios-"))
    began_s = time.monotonic()
    file = options.profile or profiled(folder)
    profile = load_profile(file)
    write_files(folder)
    bench = PlacementBench(folder, file, options.iterations)
    wanted = [pair for pair in PAIRS if not options.only or _is_wanted(pair, options.only)]
    rows: list[dict[str, Any]] = []
    for ratio in _ratios(bench, wanted, options.repeats):
        rows.append(ratio.to_json())
        document = facts("make ratios", profile, time.monotonic() - began_s) | {"rows": rows}
        write_page(options.page, document, page)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=RESULTS / "ratios.md")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of pairs")
    return parser.parse_args()


def _is_wanted(pair: Pair, only: Sequence[str]) -> bool:
    return any(part in f"{pair.first.job} {pair.name}" for part in only)


def _ratios(bench: PlacementBench, pairs: Sequence[Pair], repeats: int) -> Iterator[Ratio]:
    turns: list[Case] = []
    for pair in pairs:
        turns += [pair.first, pair.second] * repeats
    predicted = {id(case): bench.predicted(case) for case in turns}
    rows = bench.measured([(case, predicted[id(case)]) for case in turns])
    for pair in pairs:
        yield Ratio.of(pair, [next(rows) for _ in range(2 * repeats)])


if __name__ == "__main__":
    main()
