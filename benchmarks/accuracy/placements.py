"""Runs two small jobs under many placements, and writes what was predicted beside.

    python benchmarks/accuracy/placements.py [--profile FILE] [--only TEXT ...] [--repeats 3]

Constants come from `flexrlhf profile` alone: no placement that is measured has a part in them.
Predictions are made before the first run, with the lengths that the config expects. All runs use
the same processes; the plan that `placement: auto` chooses is run beside the others. Two runs of
one placement differ by more than a regret of 5 %: so whatever might be the fastest of its job and
number of workers is run again, in turns with the plan that was chosen.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from placement_bench import PlacementBench, facts, profiled, write_page
from placement_jobs import Case, cases, write_files
from placement_rows import Measured, together
from placements_page import Row, chosen_in, page, rivals_of

from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.placement.plan import Plan

RESULTS: Final = Path(__file__).parents[2] / "docs" / "results"
_NEARLY: Final = 1.25
"""Times the fastest: what one run of a placement may be slower, and yet be the fastest."""

_Key = tuple[str, int, str]
"""Job, workers and name of a case."""
_Wanted = tuple[Case, Plan]
"""A case and its plan with what it is expected to take."""


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
    predicted = {_key(case): (case, bench.predicted(case)) for case in chosen}
    found: dict[_Key, list[Measured]] = {}
    for row in bench.measured(_in_turns(predicted, found, options.repeats)):
        found.setdefault(_key(row), []).append(row)
        rows = [together(each).to_json() for each in found.values()]
        document = facts("make placements", profile, time.monotonic() - began_s) | {"rows": rows}
        write_page(options.page, document, page)


def _in_turns(
    predicted: Mapping[_Key, _Wanted], found: Mapping[_Key, Sequence[Measured]], repeats: int
) -> Iterator[_Wanted]:
    """Yields every case once, then again those on which a regret may depend.

    Args:
        predicted: all cases.
        found: what was measured so far, to which whoever takes the cases adds.
        repeats: runs, in all, of those on which a regret may depend.
    """
    yield from predicted.values()
    again = _contenders([together(rows).to_json() for rows in found.values()])
    for turn in range(1, repeats):
        for key in again if turn % 2 else reversed(again):
            yield predicted[key]


def _contenders(rows: Sequence[Row]) -> list[_Key]:
    """Returns the chosen plans and what is nearly as fast as the fastest of their rivals."""
    wanted: dict[_Key, None] = {}
    for chosen in chosen_in(rows):
        rivals = rivals_of(chosen, rows)
        enough_s = _NEARLY * min(row["measured_s"] for row in rivals)
        near = [row for row in rivals if row["measured_s"] <= enough_s]
        wanted |= dict.fromkeys(
            (row["job"], row["workers"], row["name"]) for row in (chosen, *near)
        )
    return list(wanted)


def _key(case: Case | Measured) -> _Key:
    return case.job, case.workers, case.name


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=RESULTS / "placements.md")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of what might be the fastest (3)"
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of placements")
    return parser.parse_args()


def _is_wanted(case: Case, only: Sequence[str]) -> bool:
    name = f"{case.job} {case.workers} {case.name}"
    return not only or any(part in name for part in only)


if __name__ == "__main__":
    main()
