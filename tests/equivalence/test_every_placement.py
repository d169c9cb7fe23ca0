"""Every placement in full: `make equivalence` runs this and writes docs/results/equivalence.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from equivalence_page import Row, write_page
from placed_cases import FULL
from run_differences import differences

pytestmark = [pytest.mark.ray, pytest.mark.full]

_ITERATIONS = 10
_PAGE = "FLEXRLHF_EQUIVALENCE_PAGE"
"""Names the folder of the page; without it none is written."""
_CASES = [(variant, case) for case in FULL for variant in case.variants]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    if folder := os.environ.get(_PAGE):
        write_page(Path(folder), rows, iterations=_ITERATIONS, num_cases=len(_CASES))


@pytest.mark.parametrize(
    ("variant", "case"),
    _CASES,
    ids=[f"{variant}: {case.name} on {case.workers}" for variant, case in _CASES],
)
def test_a_placement_gives_the_run_of_one_device(placed_runs, outcomes, variant, case):
    found = {}
    for dtype, floor in (("float64", 1e-6), ("float32", 1e-2)):
        keys = {"iterations": _ITERATIONS, "dtype": dtype}
        config, plan = placed_runs.plan(
            variant, case.workers, changes=case.sections(variant), **keys
        )
        run = placed_runs.on_workers(config, plan)
        expected = placed_runs.on_one_device(variant, **keys)
        found[dtype] = differences(run.folder, expected.folder, floor=floor)
    outcomes.append(Row(variant, case.name, case.workers, plan, found["float64"], found["float32"]))
    assert found["float64"].same_tokens
    assert found["float64"].metrics < 1e-6, found["float64"].at
    assert found["float64"].weights < 1e-6
