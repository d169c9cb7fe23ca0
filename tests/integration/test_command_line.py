"""The command line as a user meets it: what it prints where, and with which status it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

PROGRAM = Path(sys.executable).with_name("flexrlhf")


def folder_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_train_says_how_it_goes_and_what_came_of_it(command, config_file, document, tmp_path):
    content = document("ppo")
    content["run"] |= {"trackers": ["tensorboard"]}
    status, out, err = command("train", config_file(content), "--run-dir", tmp_path / "run")
    assert status == 0
    assert re.search(r"^ppo: 4 iterations, 0 finished$", err, re.MULTILINE)
    assert re.search(r"^ppo 4/4 +reward \d", err, re.MULTILINE)
    assert re.search(r"^reward +[\d.]+ +[\d.]+$", out, re.MULTILINE)
    assert out.splitlines()[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert "\x1b" not in out + err
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_run_folder_has_a_name_of_its_own(
    command, config_file, document, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert command("train", config_file(document("sft")))[0] == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"sft-\d{8}-\d{6}", run_dir.name)


@pytest.mark.chaos
def test_a_killed_command_goes_on(config_file, document, train, tmp_path, assert_same_run):
    """The program itself, in processes of its own."""
    content = document("grpo")
    content["training"] |= {"iterations": 12}
    expected = train(content, "expected").run_dir
    arguments = ["train", str(config_file(content)), "--run-dir", str(tmp_path / "run")]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen([PROGRAM, *arguments], stderr=subprocess.DEVNULL) as process:
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    resumed = subprocess.run(
        [sys.executable, "-m", "flexrlhf.cli", *arguments, "--resume"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"^grpo: 12 iterations, [2468]|10 finished$", resumed.stderr, re.MULTILINE)
    assert resumed.stdout.splitlines()[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert_same_run(tmp_path / "run", expected)


def test_dry_run_explains_and_starts_nothing(command, document, tmp_path, monkeypatch):
    """Also where the config lies in the current folder under the name of a run's config."""
    monkeypatch.chdir(tmp_path)
    content = document("grpo")
    del content["training"]["micro_batch_tokens"]
    Path("config.yaml").write_text(json.dumps(content))
    status, out, err = command("train", "config.yaml", "--dry-run")
    assert (status, err) == (0, "")
    assert folder_names(tmp_path) == {"config.yaml"}
    config = yaml.safe_load(out.partition("# batch sizes")[0])
    assert config["algorithm"]["kl_placement"] == "loss"
    assert config["training"]["mini_batch_samples"] == 16
    assert re.search(r"samples per iteration +16$", out, re.MULTILINE)
    assert re.search(r"optimiser steps of the run +4$", out, re.MULTILINE)
    assert re.search(r"^  actor +devices 0: tp 1, pp 1, dp 1$", out, re.MULTILINE)
    assert "1. colocated: The run has one device" in out


def test_dry_run_finds_what_is_wrong(command, config_file, document, tmp_path):
    content = document("grpo")
    rows = tmp_path / "empty.jsonl"
    rows.touch()
    content["data"]["prompts"]["path"] = str(rows)
    status, out, err = command("train", config_file(content), "--dry-run")
    assert (status, out) == (2, "")
    assert "empty.jsonl" in err


def test_plan_prints_one_json_document_and_nothing_else(config_file, staged):
    """In a process of its own, so that nothing that a library prints is missed."""
    path = config_file(staged())
    planned = subprocess.run(
        [PROGRAM, "plan", path, "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    document = json.loads(planned.stdout)
    assert planned.stderr == ""
    assert document.keys() >= {"request", "plans"}
    assert [plan["strategy"] for plan in document["plans"]] == ["colocated"] * 3
    assert [held["plans"] for held in document["stages"].values()] == [
        [plan] for plan in document["plans"]
    ]
    assert all(plan["placement"]["actor"]["devices"] == [0] for plan in document["plans"][::2])
    stages = document["request"]["stages"]
    assert [stage["algorithm"]["name"] for stage in stages] == ["sft", "reward_model", "ppo"]


@pytest.mark.parametrize("name", ["plan", "train"])
def test_another_strategy_is_refused_with_its_reason(command, config_file, document, name):
    path = config_file(document("grpo"))
    status, out, err = command(name, path, "--strategy", "disaggregated")
    assert (status, out) == (2, "")
    assert "placement.strategy" in err
    assert "'disaggregated' needs at least two devices, and this run has one." in err
    assert "cluster.workers = 2" in err
    assert command("plan", path, "--strategy", "colocated")[0] == 0


def test_an_empty_strategy_is_refused(command, config_file, document):
    status, out, err = command("plan", config_file(document("grpo")), "--strategy", "")
    assert (status, out) == (2, "")
    assert "placement.strategy" in err


def test_report_writes_the_page_again(command, train, document, tmp_path):
    run_dir = train(document("grpo")).run_dir
    (run_dir / "report.html").unlink()
    status, out, _ = command("report", run_dir)
    assert status == 0
    assert (run_dir / "report.html").is_file()
    assert re.search(r"^iterations +4$", out, re.MULTILINE)
    for wrong in (tmp_path / "nowhere", tmp_path):
        status, out, err = command("report", wrong)
        assert (status, out) == (2, "")
        assert str(wrong) in err


def test_generate_answers_with_the_trained_policy(command, train, staged, tmp_path):
    content = staged()
    content["stages"][0]["training"]["iterations"] = 40
    content["stages"][2]["training"] |= {"iterations": 1, "learning_rate": 1e-9}
    run_dir = train(content).run_dir
    options = ("--max-new-tokens", 8, "--temperature", 0)
    status, out, err = command("generate", run_dir, "--prompt", "say tea", *options)
    assert (status, err) == (0, "")
    assert re.fullmatch(r"the \w+ is (good|warm|kind) \.\n", out)
    assert command("generate", run_dir, "--prompt", "say tea", *options)[1] == out
    policy = run_dir / "stages" / "ppo" / "model" / "actor"
    assert command("generate", policy, "--prompt", "say tea", *options)[1] == out
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "say tea"}\n{"prompt": "say soup"}\n')
    lines = command("generate", run_dir, "--prompts", prompts, *options)[1].splitlines()
    assert lines[0::2] == ["> say tea", "> say soup"]
    assert lines[1] == out.rstrip("\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", "say tea"],
        [],
        ["--prompts", "nowhere.txt"],
        ["--prompt", "say tea", "--prompts", "nowhere.txt"],
    ],
)
def test_generate_without_a_model_or_prompts_is_refused(command, tmp_path, arguments):
    status, out, err = command("generate", tmp_path, *arguments)
    assert (status, out) == (2, "")
    assert "ConfigError" in err
    assert "Traceback" not in err


def test_doctor_says_what_this_machine_can_run(command):
    status, out, _ = command("doctor")
    assert "torch" in out
    assert (status == 1) == bool(re.search(r"^error", out, re.MULTILINE))


@pytest.mark.parametrize("arguments", [["train"], ["trains", "x.yaml"], ["train", "x", "--what"]])
def test_a_wrong_command_is_status_2(command, arguments):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert "Usage" in err
