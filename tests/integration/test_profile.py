"""`flexrlhf profile`: measures, writes a file that plans and runs take, and refuses bad places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flexrlhf.core.timeline import read_trace
from flexrlhf.planning.costs.profiled.profile import load_profile


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one turn of everything, on small models: numbers are then bad, and quickly there."""
    from flexrlhf.runtime.profiling import held_memory, speeds, timing, whole_costs

    monkeypatch.setattr(timing, "_LEAST_TURNS", 1)
    monkeypatch.setattr(timing, "_MOST_TURNS", 1)
    monkeypatch.setattr(speeds, "WIDTHS", (64, 128))
    monkeypatch.setattr(speeds, "_ROWS", (1, 8))
    monkeypatch.setattr(speeds, "_ROW_MATRICES", 1)
    monkeypatch.setattr(speeds, "_VOCABULARY", 512)
    monkeypatch.setattr(held_memory, "_VOCABULARY", 512)
    monkeypatch.setattr(whole_costs, "_WIDTH", 64)
    monkeypatch.setattr(whole_costs, "_CYCLES", 1)
    monkeypatch.setattr(held_memory, "_LAYERS", 2)


@pytest.mark.full
@pytest.mark.usefixtures("in_a_hurry")
def test_several_processes_are_measured_where_ray_is(command, tmp_path: Path):
    pytest.importorskip("ray")
    file = tmp_path / "profile.yaml"
    assert command("profile", "--out", file)[0] == 0
    workers = load_profile(file).workers
    assert workers is not None
    assert workers.slowdown(4) >= workers.slowdown(1)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_profile_is_what_plans_and_runs_take(command, config_file, document, tmp_path: Path):
    file = tmp_path / "profile.yaml"
    status, out, err = command("profile", "--no-workers", "--out", file)
    assert status == 0
    assert "measured in" in out
    assert "measuring memory" in err
    assert "measuring workers" not in err
    profile = load_profile(file)
    assert profile.threads == 1
    assert profile.workers is None
    assert profile.costs.memory.process_bytes > 1e8
    config = config_file(document("ppo") | {"cluster": {"profile": str(file)}})
    status, out, _ = command("plan", config, "--json")
    assert status == 0
    (plan,) = json.loads(out)["plans"]
    assert plan["predicted"]["iteration_s"] > 0
    run_dir = tmp_path / "run"
    assert command("train", config, "--run-dir", run_dir)[0] == 0
    (stored,) = json.loads((run_dir / "plan.json").read_text())["plans"]
    timelines = read_trace(run_dir / "timeline.json")
    assert set(timelines) == {"measured", "predicted"}
    measured, predicted = timelines["measured"], timelines["predicted"]
    first, second = ([s.name for s in t.spans if s.iteration == 1] for t in (measured, predicted))
    assert first == second
    start_s, end_s = predicted.window(1)
    assert stored["predicted"]["iteration_s"] == pytest.approx(end_s - start_s, abs=1e-4)
    page = (run_dir / "report.html").read_text()
    assert "Predicted and measured" in page
    assert "peak memory" in page


def test_a_place_that_cannot_be_written(command, tmp_path: Path):
    status, out, err = command("profile", "--out", tmp_path / "nowhere" / "profile.yaml")
    assert (status, out) == (2, "")
    assert "there is no folder" in err
    status, _, err = command("profile", "--out", tmp_path)
    assert status == 2
    assert "this is a folder." in err


def test_a_profile_that_is_none_starts_nothing(command, config_file, document, tmp_path: Path):
    file = tmp_path / "profile.yaml"
    file.write_text("form: 1\nmachine: {threads: -1}\n")
    config = config_file(document("ppo") | {"cluster": {"profile": str(file)}})
    for arguments in (("plan", config), ("train", config, "--run-dir", tmp_path / "run")):
        status, out, err = command(*arguments)
        assert (status, out) == (2, "")
        assert "machine.threads = -1: out of range." in err
    assert not (tmp_path / "run").exists()
