"""Pages of what was measured are those of the numbers beside them, and how a largest is found."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "accuracy")

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.mark.parametrize(
    ("name", "writer"), [("throttled", "throttled_page"), ("largest-batch", "largest_batch_page")]
)
def test_a_page_is_that_of_its_numbers(benchmark, name, writer):
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert benchmark(writer).page(document) == page


@pytest.mark.parametrize("largest", [1, 7, 19, 20, 21, 40, 77])
@pytest.mark.parametrize("expected", [1, 20, 60])
def test_the_largest_that_fits_is_found_from_any_guess(benchmark, largest, expected):
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= largest

    low, high = benchmark("bracketing").bracketed(expected, fits)
    assert low <= largest < high
    assert high - low <= max(1, round(0.05 * expected))
    assert len(tried) == len(set(tried))
