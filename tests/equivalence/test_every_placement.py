"""Every placement in full: `make equivalence` runs this and writes docs/results/equivalence.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from equivalence_page import LIMIT, EquivalencePage, Row
from placed_cases import FULL
from run_differences import differences

pytestmark = [pytest.mark.ray, pytest.mark.full]

_ITERATIONS = 10
_FOLDER = "FLEXRLHF_EQUIVALENCE_PAGE"
"""Names the folder of the page; without it none is written."""
_MISSING = "FLEXRLHF_EQUIVALENCE_MISSING"
"""If set, placements that were equal when they last ran are not run again."""
_CASES = [(variant, case) for case in FULL for variant in case.variants]
_KEYS = [(variant, case.name, case.workers) for variant, case in _CASES]


@pytest.fixture(scope="module")
def page() -> EquivalencePage | None:
    folder = os.environ.get(_FOLDER)
    return EquivalencePage(Path(folder), _KEYS, iterations=_ITERATIONS) if folder else None


@pytest.fixture(scope="module")
def done(page) -> set[tuple[str, str, int]]:
    return page.equal if page is not None and os.environ.get(_MISSING) else set()


@pytest.mark.parametrize(
    ("variant", "case"),
    _CASES,
    ids=[f"{variant}: {case.name} on {case.workers}" for variant, case in _CASES],
)
def test_a_placement_gives_the_run_of_one_device(placed_runs, page, done, variant, case):
    if (variant, case.name, case.workers) in done:
        pytest.skip("it was equal when it last ran")
    found = {}
    for dtype, floor in (("float64", 1e-6), ("float32", 1e-2)):
        keys = {"iterations": _ITERATIONS, "dtype": dtype}
        config, plan = placed_runs.plan(
            variant, case.workers, changes=case.sections(variant), **keys
        )
        run = placed_runs.on_workers(config, plan)
        expected = placed_runs.on_one_device(variant, **keys)
        found[dtype] = differences(run.folder, expected.folder, floor=floor)
    if page is not None:
        both = found["float64"], found["float32"]
        page.add(Row(variant, case.name, case.workers, plan, *both))
    assert found["float64"].same_tokens
    assert found["float64"].metrics < LIMIT, found["float64"].at
    assert found["float64"].weights < LIMIT
