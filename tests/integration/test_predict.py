"""The command `predict`, as a user runs it."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published" / "published_throughput.csv"


def run(*arguments):
    command = [sys.executable, "-m", "flexrlhf.cli", "predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """All published rows with their answers, and the seconds that took."""
    out = tmp_path_factory.mktemp("predict") / "predictions.csv"
    begun_s = time.monotonic()
    done = run(PUBLISHED, "--out", out)
    assert done.returncode == 0, done.stderr
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), time.monotonic() - begun_s


def test_every_measurement_is_answered_and_every_cell_kept(answered):
    rows, seconds = answered
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        published = list(csv.DictReader(file))
    assert len(rows) == len(published) == 435
    for row, original in zip(rows, published, strict=True):
        assert {column: row[column] for column in original} == original
        if original["kind"] == "measure":
            assert row["status"] == "ok"
            assert float(row["predicted"]) >= 0
        else:
            assert row["status"].startswith("refused: ")
            assert row["predicted"] == ""
    assert seconds < 120


def test_planning_needs_no_tensors(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from flexrlhf import app\n"
        f"app.predict({str(PUBLISHED)!r}, {str(tmp_path / 'out.csv')!r})\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"just words\n", b"a,b\n1\n", b"\xff\xfe\x00\x01", None],
)
def test_a_bad_file_is_status_2_with_three_parts(tmp_path, content):
    cases = tmp_path / "cases.csv"
    if content is not None:
        cases.write_bytes(content)
    done = run(cases, "--out", tmp_path / "out.csv")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 3
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("out", ["", "/", "."])
def test_a_folder_is_no_place_for_predictions(tmp_path, out):
    rows = PUBLISHED.read_text(encoding="utf-8").splitlines(keepends=True)
    cases = tmp_path / "cases.csv"
    cases.write_text("".join(rows[:2]), encoding="utf-8")
    done = run(cases, "--out", out)
    assert done.returncode == 2
    assert "Is a directory" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 3


def test_an_absurd_number_is_status_2_and_names_its_line(tmp_path):
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:3]
    rows[2]["response_tokens_max"] = "-5"
    cases = tmp_path / "cases.csv"
    with cases.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = run(cases, "--out", tmp_path / "out.csv")
    assert done.returncode == 2
    assert "Line 4" in done.stderr
    assert "response_tokens_max" in done.stderr
