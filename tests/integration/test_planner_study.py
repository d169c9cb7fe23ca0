"""The study of the planner: its grid, what it compares, and sentences that follow from numbers."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flexrlhf.planning.search.plans import ranked_plans

ROOT = Path(__file__).parents[2]
MODULES = (
    "cases",
    "comparing",
    "crossover",
    "crossover_section",
    "growth_section",
    "pictures",
    "regret",
    "regret_section",
    "spread",
    "study",
    "study_page",
)


@pytest.fixture(scope="module")
def code() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks" / "planner")
        yield {name: importlib.import_module(name) for name in MODULES}


@pytest.fixture(scope="module")
def small_cases(code):
    """Four cases of a second each: few devices, alike and unlike, with and without critic."""
    case = replace(
        code["cases"].grid()[0],
        algorithm="ppo",
        model="llama-13b",
        trained="all weights",
        pool="H100",
        devices=8,
        answer=256,
        staleness=0,
    )
    grpo = replace(case, algorithm="grpo")
    return [case, grpo, replace(grpo, pool="A100 + V100"), replace(grpo, staleness=1)]


@pytest.fixture(scope="module")
def rows(code, small_cases):
    return [code["regret"].judged(case) for case in small_cases]


def test_every_value_of_a_dimension_stands_in_equally_many_cases(code):
    cases = code["cases"]
    found = cases.grid()
    assert len(found) >= 100
    assert len(set(found)) == len(found)
    for name, values in cases.DIMENSIONS.items():
        counts = Counter(getattr(case, name) for case in found)
        assert set(counts) == set(values)
        assert set(counts.values()) == {len(found) // len(values)}


def test_the_grid_is_the_same_each_time_and_every_case_is_a_sound_config(code):
    cases = code["cases"]
    assert cases.grid() == cases.grid()
    for case in cases.grid():
        request = case.request()
        assert request.cluster.num_devices == case.devices
        assert request.workload.num_samples == case.batch * case.devices


def test_the_rule_is_never_better_than_what_auto_finds(code, rows):
    for row in rows:
        regret = code["regret_section"].guideline_regret(row)
        assert regret is None or regret > -1e-9


def test_the_best_is_what_auto_chooses(code, small_cases, rows):
    ranked = ranked_plans(small_cases[1].request())
    best = code["regret_section"].best_seconds(rows[1])
    assert ranked.best.predicted is not None
    assert best == pytest.approx(ranked.best.predicted.iteration_s, rel=1e-9)


def test_pools_within_the_range_are_no_better_than_the_best_pools(rows):
    held = [row["pools"] for row in rows if row["pools"] is not None]
    assert held
    for pools in held:
        assert 0 < pools["share"] < 1
        within = pools["within_seconds"]
        assert within is None or within >= pools["seconds"] * (1 - 1e-9)


def test_the_page_has_every_part_and_the_pictures_hold_no_nonsense(code, rows, tmp_path):
    scene = code["crossover"].Scene("llama-7b", "LoRA", 8)
    size = {"devices": 8, "answer": "colocated", "seconds": 2.0, "cpu_seconds": 1.9}
    size |= {"search_seconds": 1.0, "mebibytes": 60.0}
    machine = {"processor": "any", "cores": "2", "python": "3", "commit": "none", "load": "0.0"}
    machine["load_after"] = "1.0"
    numbers = {
        "regret": rows,
        "crossover": [code["crossover"].compared(scene)],
        "growth": {
            "machine": machine,
            "runs": 1,
            "sizes": [size, size | {"devices": 16, "search_seconds": 4.0}],
        },
    }
    code["study"].write(tmp_path, numbers)
    page = (tmp_path / "planner-study.md").read_text()
    assert "the power 2.00 of the" in page
    drawn = sorted((tmp_path / "images" / "planner-study").glob("*.svg"))
    assert len(drawn) == 5
    for picture in drawn:
        assert f"images/planner-study/{picture.name}" in page
        assert "nan" not in picture.read_text()


def test_a_crossing_needs_every_larger_cluster(code):
    section = code["crossover_section"]

    def row(devices, pools, other):
        scene = {"model": "m", "trained": "LoRA", "devices": devices}
        return {"scene": scene, "seconds": {"disaggregated": pools, "colocated": other}}

    rival = section.Rival("colocated", "colocated")
    times = [(8, 1.0, 2.0), (16, 1.0, 1.01), (32, 1.0, 1.5), (64, None, 1.0), (128, 1.0, 2.0)]
    held = [row(*entry) for entry in times]
    assert section.crossing(held, rival, "synchronous") == "32"
    assert section.crossing(held[:2], rival, "synchronous") == "level"
    assert section.crossing([row(8, 2.0, 1.0)], rival, "synchronous") == "never"
    assert section.crossing(held[3:4], rival, "synchronous") == "no plan"


def test_a_spread_is_of_the_values_that_were_seen(code):
    found = code["spread"].Spread.of([0.1 * place for place in range(1, 11)])
    assert (found.median, found.most, found.largest) == pytest.approx((0.55, 0.9, 1.0))
    assert code["spread"].Spread.of([]) is None
    assert math.isclose(code["spread"].Spread.of([0.5]).most, 0.5)
