"""The accuracy page says of every goal that is missed which rows miss, and why."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))

from misses import own_misses  # noqa: E402  a program's folder, no package
from own_runs_page import own_runs_page  # noqa: E402

PAGE = (ROOT / "docs" / "planner-accuracy.md").read_text(encoding="utf-8")
WHY = PAGE.partition("## Which rows miss, and why")[2].partition("\n## ")[0]
DOCUMENT = json.loads((ROOT / "docs" / "planner-accuracy.json").read_text(encoding="utf-8"))


def lines_of(goal):
    text = WHY.partition(f"**{goal}**")[2].partition("**")[0]
    return [line for line in text.splitlines() if line.startswith("- ")]


def lines_of_all():
    return [line for line in WHY.splitlines() if line.startswith("- ")]


def test_every_miss_has_a_reason():
    assert "no reason found" not in PAGE
    assert all(re.search(r": [a-z0-9].{20,}\.$", line, re.IGNORECASE) for line in lines_of_all())


def test_every_speed_up_beyond_a_quarter_is_named():
    table = PAGE.partition("| quotient | published")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    beyond = {row[0] for row in rows if abs(float(row[2]) / float(row[1]) - 1) > 0.255}
    assert beyond
    named = "\n".join(lines_of("Speed-ups"))
    assert all(name in named for name in beyond)


def test_every_memory_row_beyond_a_tenth_is_named():
    kinds = ("peak_memory", "max_batch_samples")
    beyond = {
        row["id"]
        for row in DOCUMENT["rows"]
        if row["metric"] in kinds and abs(row["predicted"] / row["measured"] - 1) > 0.1
    }
    assert {line[2:].split(" ")[0] for line in lines_of("Published memory")} == beyond


def test_rows_of_the_grid_are_counted():
    beyond = [
        row
        for row in DOCUMENT["rows"]
        if row["id"].startswith("real-vws-") and abs(row["left_out_error"]) > 0.3
    ]
    counted = sum(int(line[2:].split(" ")[0]) for line in lines_of("ReaL's grid"))
    assert counted == len(beyond)


def test_our_own_missed_runs_are_read_from_their_page():
    lines = [
        "- demo, sft, iteration: -17.3 %, goal within 15 %: missed.",
        "- demo, sft, peak memory: -9.0 %, goal from -5 % to +10 %: missed.",
        "- demo, rm, iteration: -7.8 %, goal within 15 %: met.",
    ]
    assert own_misses(lines) == {"demo, sft": "-17.3 %"}
    of_rounds = "- demo, ppo, iteration: +16.0 % (+9.1 to +18.8), goal within 15 %: missed."
    assert own_misses([of_rounds]) == {"demo, ppo": "+16.0 %"}
    page = (ROOT / "docs" / "results" / "own-runs.md").read_text(encoding="utf-8")
    missed = own_misses(page.splitlines())
    named = "\n".join(lines_of("Step times of our own runs"))
    assert all(f"{run}, {error}" in named for run, error in missed.items())


def test_the_page_of_our_own_runs_is_made_of_all_rounds():
    folder = ROOT / "docs" / "results"
    document = json.loads((folder / "own-runs.json").read_text(encoding="utf-8"))
    assert own_runs_page(document) == (folder / "own-runs.md").read_text(encoding="utf-8")
    found = {}
    for row in document["rows"]:
        if row["what"] == "iteration":
            predicted = row["known"] or row["before"]
            found.setdefault(row["run"], []).append(predicted / row["measured"] - 1)
    assert {len(errors) for errors in found.values()} == {document["rounds"]}
    page = own_runs_page(document)
    for run, errors in found.items():
        middle = sorted(errors)[len(errors) // 2]
        verdict = "met" if abs(middle) <= 0.15 else "missed"
        (line,) = [line for line in page.splitlines() if line.startswith(f"- {run}, iteration: ")]
        assert line.startswith(f"- {run}, iteration: {100 * middle:+.1f} % (")
        assert line.endswith(f": {verdict}.")
