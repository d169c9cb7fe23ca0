"""The pages about the paper: published numbers beside those of `predict`, verdicts from numbers."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flexrlhf import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLISHED = ROOT / "benchmarks" / "published" / "published_throughput.csv"
TABLE_2 = ("flex-t1-023", "flex-t1-024", *(f"flex-t2-00{row}" for row in range(3, 9)))
OF_TABLES = re.compile(r"flex-t[125]-\d+")

ROUNDED = 0.0051
"""By how much a printed factor may differ from what was judged."""

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def code() -> Iterator[dict[str, ModuleType]]:
    """The modules that write the pages."""
    names = (
        "numbers_of_tables",
        "figures",
        "compared",
        "baselines",
        "verdict",
        "work",
        "bounds",
        "published",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks" / "paper")
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture(scope="module")
def published() -> Rows:
    with PUBLISHED.open(newline="") as file:
        return list(csv.DictReader(file))


def tables(lines: list[str]) -> list[Rows]:
    """Every table of a page, its cells by the words of the header."""
    found: list[Rows] = []
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if "|" in line else []
        if not cells:
            header = []
        elif not header:
            header = cells
            found.append([])
        elif not line.startswith("|---"):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def page(name: str) -> list[str]:
    return (DOCS / name).read_text().splitlines()


def section(name: str, title: str) -> list[Rows]:
    """The tables under a heading of a page."""
    lines = page(name)
    start = next(i for i, line in enumerate(lines) if line.startswith(f"## {title}"))
    rest = (i for i, line in enumerate(lines) if i > start and line.startswith("## "))
    return tables(lines[start : next(rest, len(lines))])


def test_every_published_number_of_the_tables_is_on_the_page(published: Rows):
    shown = {
        cell
        for title in ("Table I:", "Table II:", "Table V:")
        for row in section("paper.md", title)[0]
        for column, cell in row.items()
        if column.endswith("published")
    }
    numbers = {
        f"{float(row['value']):g}"
        for row in published
        if OF_TABLES.fullmatch(row["id"]) and row["metric"] == "samples_per_s"
    }
    assert shown - {"-", "OOM"} == numbers
    assert "OOM" in shown


def test_simulated_numbers_are_those_of_the_command_predict(
    code: dict[str, ModuleType], published: Rows, tmp_path: Path
):
    cases, out = tmp_path / "cases.csv", tmp_path / "out.csv"
    asked = [row for row in published if row["id"] in TABLE_2 and row["kind"] == "measure"]
    with cases.open("w", newline="") as file:
        writer = csv.DictWriter(file, published[0])
        writer.writeheader()
        writer.writerows(asked)
    app.predict(cases, out)
    with out.open(newline="") as file:
        answers = {row["id"]: float(row["predicted"]) for row in csv.DictReader(file)}
    rates, gains = tables(code["numbers_of_tables"].table_2())
    shown = [float(row[f"{size} simulated"]) for row in rates for size in ("33B", "65B")]
    assert shown == pytest.approx([answers[name] for name in TABLE_2], rel=0.01)
    gain = answers["flex-t2-003"] / answers["flex-t1-023"]
    assert float(gains[0]["33B simulated"]) == pytest.approx(gain, abs=0.006)


def test_the_four_placements_are_drawn_as_they_are_planned(code: dict[str, ModuleType]):
    drawn = dict(code["figures"].layouts())
    assert len(drawn) == 4
    for name, picture in drawn.items():
        assert (DOCS / "images" / "paper" / name).read_text() == picture + "\n"


def test_a_fair_baseline_is_the_fastest_that_fits(code: dict[str, ModuleType]):
    compared, baselines = code["compared"], code["baselines"]
    scene = compared.Scene("llama-33b", 32, 256)
    rates = [compared.outcome(scene, way).samples_per_s or 0.0 for way in compared.FAIR]
    weak = compared.outcome(scene, baselines.PER_TOKEN).samples_per_s
    assert compared.best_fair(scene).samples_per_s == max(rates) > weak


def test_work_is_the_same_but_for_the_lengths(code: dict[str, ModuleType]):
    short, long = (code["work"].work("llama-33b", 32, tokens) for tokens in (256, 8192))
    assert short.workload.num_samples == long.workload.num_samples
    assert (short.workload.mean_tokens, long.workload.mean_tokens) == (256, 8192)
    assert {model.lora_rank for model in short.models.values()} == {128, None}


@pytest.mark.parametrize(
    ("holds_in", "cases", "finding"),
    [(4, 4, "right"), (0, 4, "wrong"), (3, 4, "right in 3 of 4 cases")],
)
def test_a_finding_counts_the_cases(
    code: dict[str, ModuleType], holds_in: int, cases: int, finding: str
):
    assert code["verdict"].Verdict("claim", holds_in, cases, "numbers").finding == finding


def findings() -> dict[str, str]:
    """What the page says to each criticism, by words of it."""
    (rows,) = section("what-remains.md", "Are the critics right?")
    return {row["criticism"]: row["finding"].strip("*") for row in rows}


def finding(words: str) -> str:
    (found,) = (said for claim, said in findings().items() if words in claim)
    return found


def counted(holds: list[bool]) -> str:
    if all(holds):
        return "right"
    return f"right in {sum(holds)} of {len(holds)} cases" if any(holds) else "wrong"


def is_taken_away(weak: str, fair: str) -> bool:
    gain = float(weak) - 1
    return gain > 0.03 and float(fair.split(maxsplit=1)[0]) - 1 < gain / 2


def ends(spread: str) -> tuple[float, float]:
    """Least and largest of `0.55x to 0.58x`, or of `1.00x`."""
    values = [float(text) for text in re.findall(r"([\d.]+)x", spread)]
    return min(values), max(values)


def test_what_survives_follows_from_the_page_itself():
    (rows,) = section("what-remains.md", "What survives")
    assert len(rows) == 5
    for row in rows:
        fair = [cell for name, cell in row.items() if "fair" in name and cell != "-"]
        lows, highs = zip(*map(ends, fair), strict=True)
        survives = row["survives"].strip("*")
        assert survives == "yes" or min(lows) < 1.03 + ROUNDED
        assert survives == "no" or max(highs) > 1.03 - ROUNDED
        assert survives != "yes" or min(lows) > 1.03 - ROUNDED
        assert survives != "no" or max(highs) < 1.03 + ROUNDED
    factors = [
        float(row["best fair"].split()[0])
        for row in section("what-remains.md", "Disaggregation")[0]
    ]
    shown = rows[0]["over the best fair baseline, 256 tokens"]
    assert ends(shown) == (min(factors), max(factors))


def test_the_verdict_on_the_weak_baseline_follows_from_the_page_itself():
    rows = section("what-remains.md", "Disaggregation")[0]
    holds = [is_taken_away(row["gather per token"], row["best fair"]) for row in rows]
    assert finding("weak baseline") == counted(holds)
    for row in rows:
        columns = list(row)
        fair = [row[name] for name in columns[columns.index("gather per token") + 1 : -1]]
        least = min(float(value) for value in fair if value != "-")
        assert float(row["best fair"].split()[0]) == least


def test_the_verdict_on_the_length_follows_from_the_page_itself():
    (rows,) = section("what-remains.md", "Generation's share")
    shares = [
        [float(row[f"gather per token, {tokens}"].split()[0]) for tokens in (256, 8192)]
        for row in rows
    ]
    assert finding("256 tokens inflate") == counted([long < short - 3 for short, long in shares])


def test_the_verdict_on_the_reward_follows_from_the_page_itself():
    (rows,) = section("what-remains.md", "The reward on one device")
    holds = [
        is_taken_away(
            row["Interleaved 1 over the one-device reward"],
            row["Interleaved 1 over the sharded reward"],
        )
        for row in rows
    ]
    assert finding("trlX") == counted(holds)


def test_the_verdict_on_interleaved_2_follows_from_the_page_itself():
    (rows,) = section("what-remains.md", "Interleaved 2")
    holds = [
        float(row["best against best"]) < 1.03
        for row in rows
        if row["model"] in ("33B", "65B") and row["tokens"] == "256"
    ]
    assert finding("Interleaved 2 owes") == counted(holds)


def test_the_verdict_on_the_shrinking_speed_up_follows_from_the_page_itself():
    found = section("what-remains.md", "Disaggregation")
    short, long = (
        {
            (row["model"], row["devices"]): float(row["disaggregated"])
            / float(row["gather per token"])
            for row in rows
        }
        for rows in (found[2], found[4])  # samples/s at 256 and at 8192 tokens
    )
    assert len(short) == len(long) == 4
    holds = [long[case] < 0.97 * gain for case, gain in short.items()]
    assert finding("much smaller") == counted(holds)


def test_the_verdict_on_interleaved_1_follows_from_the_page_itself():
    """Its two cases, 33B and 65B, are the ends of what it shows."""
    (rows,) = section("what-remains.md", "Are the critics right?")
    (row,) = (row for row in rows if row["criticism"].startswith("Interleaved 1 gives nothing"))
    shown, _, _ = row["simulated"].partition(" with ZeRO-3")
    assert "33B and 65B" in shown
    assert finding("Interleaved 1 gives nothing") == counted([gain < 1.03 for gain in ends(shown)])


def test_what_bounds_the_placements_follows_from_the_page_itself():
    filled, others, planned = section("paper.md", "What bounds them")
    names = {"memory": "memory", "devices": "compute", "links": "communication"}
    names["no idle device"] = "scheduling"
    for row in (*filled, *others):
        gains = {name: float(row[column]) for column, name in names.items()}
        assert row["bound by"] == max(gains, key=lambda name: gains[name])
        assert int(row["with twice the memory"]) > 2 * int(row["batch"])
    bounds = {row["model, devices"].partition(",")[0]: row for row in filled}
    assert bounds["13B"]["bound by"] == "memory"
    assert 1.0 < float(bounds["7B"]["devices"]) - float(bounds["7B"]["memory"]) + 1.0 < 1.2
    for size in ("33B", "65B"):
        devices, links, memory = (float(bounds[size][n]) for n in ("devices", "links", "memory"))
        assert devices < links < memory
    slower = [row for row in others if row["what"].startswith("unlike pools")]
    for column, ascends in (("links", True), ("devices", False), ("memory", True)):
        values = [float(row[column]) for row in slower]
        assert values == sorted(values, reverse=not ascends)
    assert all(float(row["memory"]) > float(row["links"]) for row in slower)
    scored = others[-1]
    assert scored["bound by"] == "scheduling"
    assert 1 - 1 / float(scored["no idle device"]) == pytest.approx(0.75, abs=0.02)
    assert {row["model"] for row in planned} == {"7B", "13B"}
    assert all(float(row[way]) < 1.1 for row in planned for way in ("adapters", "all weights"))


def test_the_largest_batch_of_a_bound_is_that_of_predict(code: dict[str, ModuleType]):
    found = code["bounds"].filled_batch("flex-t1-002")
    row = {**code["published"].row_named("flex-t1-002"), "metric": "max_batch_samples"}
    assert found.batch == code["published"].predicted(row, "max_batch_samples")
    assert found.bound_by == "memory"
