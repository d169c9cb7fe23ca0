"""`make bench`: what it refuses, how programs take turns, and what it writes."""

from __future__ import annotations

import importlib
import json
import random
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from flexrlhf.core.errors import ConfigError, RunFailed

ROOT = Path(__file__).parents[2]
SPEED = ROOT / "benchmarks" / "speed"
PROGRAM = """
import sys
sys.path.insert(0, {programs!r})
from turns import Turns, assignment

given = assignment()
turns = Turns(given["job"]["turn"]["iterations"], ())
while True:
    {work}
    for _ in range(given["job"]["training"]["epochs"]):
        turns.step()
    turns.end_iteration({tokens})
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(SPEED)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.fixture
def document() -> dict[str, Any]:
    from flexrlhf.config.yaml_text import read_yaml

    return read_yaml(ROOT / "benchmarks" / "jobs" / "grpo-tiny.yaml")


@pytest.fixture
def program(bench, document, tmp_path):
    """Makes a program that pretends to do the job grpo-tiny."""

    def entry(name: str, tokens: int = 4 * 8 * 32, work: str = "pass", deadline_s: float = 20.0):
        script = tmp_path / f"{name}.py"
        programs = str(SPEED / "programs")
        script.write_text(PROGRAM.format(programs=programs, tokens=tokens, work=work))
        return bench("contestant").Entry(
            name=name,
            command=[sys.executable, str(script)],
            environment={},
            assignment={"job": document, "folder": str(tmp_path)},
            settings={"threads": 1},
            deadline_s=deadline_s,
        )

    return entry


def test_every_job_can_be_read(bench):
    jobs = bench("jobs")
    names = jobs.job_names()
    assert {"G1", "G32", "grpo-smollm2", "grpo-tiny", "ppo-tiny", "dpo-smollm2"} <= set(names)
    for name in names:
        job = jobs.read_job(name)
        assert job.tokens > 0
        assert (job.steps > 0) == (job.does != "generate")


def test_a_wrong_job_is_refused_with_all_that_is_wrong(bench, document):
    wrong = document | {"new_tokens": 0, "promts": 4, "dtype": "float16"}
    with pytest.raises(ConfigError) as caught:
        bench("jobs").parse_job(wrong, "mine.yaml")
    error = caught.value
    assert error.wrong == "mine.yaml: 3 problems."
    assert all(f"- {key}: " in error.right for key in ("new_tokens", "promts", "dtype"))
    assert error.do


@pytest.mark.parametrize(
    "model", [{}, {"package": "p"}, {"architecture": {}, "package": "p", "file": "f"}]
)
def test_a_job_has_one_model(bench, document, model):
    with pytest.raises(ConfigError, match="an architecture, or a package and its file"):
        bench("jobs").parse_job(document | {"model": model}, "mine.yaml")


def test_a_job_that_is_not_there_ends_with_status_2():
    command = [sys.executable, str(SPEED / "bench.py"), "--jobs", "grpo-tiney"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "There is no job 'grpo-tiney'." in done.stderr
    assert "Jobs are " in done.stderr
    assert "Did you mean 'grpo-tiny'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_peer_that_is_not_installed_is_named(bench, document, tmp_path):
    job = bench("jobs").parse_job(document, "mine.yaml")
    material = bench("material").Material(tmp_path, tmp_path, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"trl 1\.16\.0 is not installed"):
        bench("entries").entries(job, material, tmp_path, [1])


def test_programs_alternate_and_become_rows(bench, document, program):
    job = bench("jobs").parse_job(document, "mine.yaml")
    slow = "import time; time.sleep(0.01)"
    entries = [[program("flexrlhf")], [program("trl", work=slow)]]
    results = bench("contest").contest(job, entries, repeats=3)
    facts = {"commit": "abc", "at": "2026-01-01 00:00", "minutes": 0.1}
    (row,) = bench("bench_rows").rows_of("grpo-tiny", job, results, facts)
    assert row["job"] == "grpo-tiny"
    assert row["peer"] == "trl 1.16.0"
    assert row["unit"] == "s/iteration"
    assert row["goal"] == 6.0
    assert len(row["ours"]["runs"]) == len(row["theirs"]["runs"]) == 3
    assert row["theirs"]["median"] >= 0.01
    quotients = [b / a for a, b in zip(row["ours"]["runs"], row["theirs"]["runs"], strict=True)]
    assert row["ratio"]["median"] == sorted(quotients)[1]
    assert (row["ratio"]["min"], row["ratio"]["max"]) == (min(quotients), max(quotients))
    assert row["peak_bytes"]["ours"] > 1e6
    assert row["start_up_s"]["theirs"] > 0


def test_the_better_setting_competes(bench, document, program):
    job = bench("jobs").parse_job(document, "mine.yaml")
    entries = [[program("slow", work="import time; time.sleep(0.05)"), program("fast")]]
    (result,) = bench("contest").contest(job, entries, repeats=1)
    assert result.name == "fast"


def test_other_work_than_the_job_s_is_no_result(bench, document, program):
    job = bench("jobs").parse_job(document, "mine.yaml")
    with pytest.raises(RunFailed, match="made 10230 tokens and 10 optimiser steps"):
        bench("contest").contest(job, [[program("flexrlhf", tokens=1023)]], repeats=1)


def test_a_program_that_ends_says_why(bench, document, program):
    job = bench("jobs").parse_job(document, "mine.yaml")
    with pytest.raises(RunFailed, match="ValueError: no such thing"):
        bench("contest").contest(
            job, [[program("flexrlhf", work="raise ValueError('no such thing')")]], repeats=1
        )


def test_a_program_rests_while_others_have_their_turn(bench, program, tmp_path):
    spin = "threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()"
    entry = program("flexrlhf", work=f"import threading; threading.active_count() > 1 or {spin}")
    waiting = bench("contestant").Contestant(entry, tmp_path / "log")
    try:
        process = psutil.Process(waiting._process.pid)
        before = process.cpu_times()
        time.sleep(0.5)
        after = process.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.1
        iterations = entry.assignment["job"]["turn"]["iterations"]
        assert waiting.turn().tokens == iterations * 4 * 8 * 32
    finally:
        waiting.close()
    assert not psutil.pid_exists(process.pid)


def test_a_program_that_hangs_is_given_up(bench, document, program):
    job = bench("jobs").parse_job(document, "mine.yaml")
    hangs = "import time; turns._began_s and time.sleep(600)"
    with pytest.raises(RunFailed, match="said nothing"):
        bench("contest").contest(
            job, [[program("flexrlhf", work=hangs, deadline_s=0.5)]], repeats=1
        )


def test_jobs_that_were_not_run_keep_their_rows(bench):
    merged = bench("bench_rows").merged
    old = [{"job": "b", "n": 1}, {"job": "a", "n": 1}, {"job": "gone", "n": 1}]
    assert merged(old, [{"job": "b", "n": 2}], ["a", "b"]) == [
        {"job": "a", "n": 1},
        {"job": "b", "n": 2},
    ]


def test_the_page_is_that_of_its_numbers(bench):
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    numbers = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
    jobs = bench("jobs")
    found = {name: jobs.read_job(name) for name in jobs.job_names()}
    assert bench("bench_page").renewed(page, numbers, found) == page
    assert set(numbers) >= {"commit", "machine", "command", "rows"}
    for name, picture in bench("bench_page").pictures(numbers).items():
        file = ROOT / "docs" / "images" / "benchmarks" / f"{name}.svg"
        assert file.read_text(encoding="utf-8") == picture + "\n"
    for row in numbers["rows"]:
        assert {"job", "peer", "ours", "theirs", "unit", "ratio", "goal"} <= set(row)


def test_what_was_learnt_is_what_the_curves_say(bench):
    numbers = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
    learning = bench("learning")
    rows = numbers["learning"]
    assert rows
    for row in rows:
        resolution = row["curve"]["resolution"]
        assert len(row["ours"]) == len(row["theirs"]) == row["curve"]["seeds"]
        assert {len(run) for run in row["ours"] + row["theirs"]} == {row["curve"]["iterations"]}
        assert row["verdict"] == learning.compared(row["ours"], row["theirs"], resolution)
        slowed = learning.compared(row["ours_slowed"], row["theirs"], resolution)
        assert slowed == row["verdict_slowed"]
        assert slowed["result"] == "different", "half the learning rate has to be told apart"


def curves(draw: random.Random, rate: float = 1.0, noise: float = 0.01, runs: int = 5):
    """Curves from 0.5 to nearly 1, each run with a delay and a noise of its own."""

    def curve() -> list[float]:
        speed = rate * (1 + draw.gauss(0, noise))
        return [1 - 0.5 * 0.97 ** (speed * i) + draw.gauss(0, noise) for i in range(120)]

    return [curve() for _ in range(runs)]


def test_curves_of_one_process_are_the_same_and_slower_ones_are_not(bench):
    compared, draw = bench("learning").compared, random.Random(0)
    same = [compared(curves(draw), curves(draw), 0.02)["result"] for _ in range(50)]
    assert same.count("same") >= 40  # two intervals of 95 %, and a band
    slower = [compared(curves(draw, rate=0.5), curves(draw), 0.02)["result"] for _ in range(20)]
    assert set(slower) == {"different"}
    late = [[*run[:80], *(value - 0.05 for value in run[80:])] for run in curves(draw)]
    assert compared(late, curves(draw), 0.02)["result"] == "different"
    loud = [compared(curves(draw, noise=0.2), curves(draw, noise=0.2), 0.02) for _ in range(20)]
    assert "same" not in {verdict["result"] for verdict in loud}
    assert "not known" in {verdict["result"] for verdict in loud}


def test_student_s_quantiles_are_those_of_the_tables(bench):
    table = {1: 12.706, 2: 4.303, 4: 2.776, 8: 2.306, 30: 2.042, 120: 1.980}
    for freedom, quantile in table.items():
        assert bench("welch").student_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_holds_the_true_difference_nineteen_times_in_twenty(bench):
    draw = random.Random(1)

    def holds() -> bool:
        groups = [[draw.gauss(mean, mean) for _ in range(size)] for mean, size in ((1, 5), (3, 7))]
        found = bench("welch").difference(*groups)
        assert found.mean == pytest.approx(statistics.mean(groups[0]) - statistics.mean(groups[1]))
        return abs(found.mean - (1 - 3)) <= found.half_width

    assert 0.92 <= sum(holds() for _ in range(400)) / 400 <= 0.98


def test_only_a_job_whose_reward_is_a_function_has_a_curve(bench, document):
    with pytest.raises(ConfigError, match="only grpo has a curve"):
        bench("jobs").parse_job(document | {"does": "ppo"}, "mine.yaml")


def test_runs_of_a_curve_differ_by_their_seed_alone(bench, document, tmp_path):
    short = document | {"curve": document["curve"] | {"iterations": 2}, "peers": document["peers"]}
    job = bench("jobs").parse_job(short, "mine.yaml").learning()
    material = bench("material").make_material(job, tmp_path, tmp_path)
    peer = tmp_path / "trl-1.16.0" / "bin" / "python"
    peer.parent.mkdir(parents=True)
    peer.symlink_to(sys.executable)
    ours, _ = bench("entries").seeded_entries(job, material, tmp_path)
    learned = bench("learning")._learned
    first, again, other = (learned(job, entry).first.rewards for entry in (*ours[:1] * 2, ours[1]))
    assert first == again != other
    assert len(first) == len(other) == 2
    assert all(0.3 < reward < 0.7 for reward in (*first, *other))


def test_the_reward_of_curves_is_the_share_of_low_words():
    module = SPEED / "programs" / "rewards.py"
    low_words = runpy.run_path(str(module))["low_words"]
    assert low_words(["w2 w255 w256 w511", "w300", "w9", "<end>"]) == [0.5, 0.0, 1.0, 0.0]


def test_points_of_scaling_are_jobs_that_differ_in_one_thing(bench):
    scaling = bench("scaling")
    points = scaling.points()
    assert scaling.BASE.name in points
    jobs = {name: point.job for name, point in points.items()}
    assert len({job.model_dump_json() for job in jobs.values()}) == len(points)
    shared = scaling.AXES[f"answers to a prompt, of {scaling.ANSWERS}"].values()
    assert {point.job.samples for point in shared} == {scaling.ANSWERS}
    for axis in scaling.AXES.values():
        ours = [job.peers for point in axis.values() for job in [jobs[point.name]]]
        assert all({"limit", "transformers"} == {peer.program for peer in peers} for peers in ours)


@pytest.mark.parametrize("size", ["1M", "10M", "35M", "135M"])
def test_sizes_of_scaling_have_about_so_many_parameters(bench, size):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    scaling = bench("scaling")
    given = dict(scaling.Point(size=size).job.model.architecture)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(given.pop("model_type"), **given)
        )
    assert model.num_parameters() == pytest.approx(scaling.PARAMETERS[size], rel=0.15)


def test_what_was_measured_of_scaling_is_shown_and_the_rest_is_absent(bench):
    scaling, page = bench("scaling"), bench("scaling_page")
    result = bench("contest").Result
    rows = []
    for point in [scaling.BASE, scaling.Point(prompts=64)]:
        done = [
            result(name, {"threads": 2}, {}, 1.0, (seconds,), 1)
            for name, seconds in (("flexrlhf", 2.0), ("transformers 5.19.0", 4.0), ("limit", 1.0))
        ]
        rows.append(
            scaling.row_of(point, done, {"commit": "abc", "at": "today", "machine": "mine"})
        )
    ours = rows[0]["programs"]["flexrlhf"]["median"]
    assert ours == 8 * 64 * scaling.ITERATIONS / 2.0
    text = "\n".join(page.scaling_section(rows))
    assert f"| new tokens | 64 | {ours:.0f} | {ours / 2:.0f} | {ours * 2:.0f} | 50% | 1 |" in text
    assert "| prompts, one answer each | 64 |" in text
    assert "| new tokens | 512 |" not in text
    assert "**not measured** yet: 12" in text
    picture = page.scaling_picture(rows)
    assert picture.count("<polyline") == 4 * 3 - 3  # no point has 4 or 16 answers to a prompt
    assert picture.count("<circle") == 3 * (2 + 1 + 1)


def test_a_part_that_is_not_there_ends_with_status_2():
    command = [sys.executable, str(SPEED / "bench.py"), "--parts", "curves"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "'curves' is none of speed, learning, scaling" in done.stderr


def test_a_page_without_a_place_is_refused(bench):
    with pytest.raises(ConfigError, match="no place"):
        bench("bench_page").renewed("# mine", {"rows": []}, {})


def test_the_limit_is_reckoned_from_the_shapes_of_a_model(document, tmp_path):
    model = document["model"]["architecture"] | {"num_hidden_layers": 1, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(model))
    told = tmp_path / "told.json"
    job = document | {"prompts": 2, "samples_per_prompt": 2, "turn": {"iterations": 1}}
    given = {"job": job, "model": str(tmp_path), "settings": {"threads": 1}}
    told.write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, str(SPEED / "programs" / "limit_generate.py"), str(told)],
        input="turn\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    ready, turn = map(json.loads, done.stdout.splitlines())
    assert "torch" in ready["versions"]
    assert turn["tokens"] == 2 * 2 * 32
    assert turn["seconds"] > 0
    assert turn["steps"] == 0
