"""Commands that are asked for what they cannot do, and interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from train_command import LISTENING


@pytest.mark.parametrize("what", ["nowhere", "run.yaml", "empty"])
@pytest.mark.parametrize("arguments", [("report",), ("generate", "--prompt", "say")])
def test_what_is_no_run_is_said(refused, tmp_path, what, arguments):
    (tmp_path / "run.yaml").write_text("{}")
    (tmp_path / "empty").mkdir()
    name, *options = arguments
    refused(name, tmp_path / what, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompt", ""], "has no tokens"),
        (["--prompt", "say " * 40], "Prompt 1 has 40 tokens"),
        (["--prompt", "say", "--max-new-tokens", "32"], "the model reads 32"),
        (["--prompt", "say", "--temperature", "nan"], "temperature nan"),
        (["--prompt", "say \udcff"], "is not text"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        ([], "needs prompts"),
    ],
)
def test_generate_says_what_is_wrong_in_its_own_terms(refused, policy_folder, options, said):
    err = refused("generate", policy_folder, *options)
    assert said in err
    assert "data." not in err
    assert "rollout." not in err


def test_without_torch_planning_works_and_training_says_what_is_missing(
    refused, command, config_file, document, monkeypatch
):
    from flexrlhf.core import plugins

    monkeypatch.setattr(plugins, "find_spec", lambda name: None if name == "torch" else object())
    path = config_file(document("sft"))
    assert command("plan", path)[0] == 0
    for arguments in (("train", path), ("train", path, "--dry-run"), ("generate", path)):
        options = ("--prompt", "say") if arguments[0] == "generate" else ()
        err = refused(*arguments, *options)
        assert "needs the package 'torch', which is not installed" in err
        assert "flexrlhf[train]" in err


@pytest.mark.parametrize("missing", ["ray", "psutil"])
def test_planning_for_a_ray_cluster_says_what_is_missing(
    refused, config_file, document, monkeypatch, missing
):
    from flexrlhf.core import plugins

    monkeypatch.setattr(plugins, "find_spec", lambda name: None if name == missing else object())
    err = refused("plan", config_file(document("sft") | {"cluster": {"ray": "auto"}}))
    assert f"needs the package '{missing}', which is not installed" in err
    assert "Install it: pip install 'flexrlhf[" in err


def test_ctrl_c_ends_a_run_that_can_go_on_and_whose_folder_was_its_own(
    changed, refused, command, config_file, tmp_path
):
    """The program itself, in a process of its own, while another asks for the same folder."""
    keys = {"training.iterations": 100_000, "run.keep_checkpoints": 1}
    arguments = ["train", config_file(changed("grpo", keys)), "--run-dir", tmp_path / "run"]
    program = [*LISTENING, sys.executable, "-m", "flexrlhf.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.01)
        err = refused(*arguments, "--resume")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "in use by another process" in err
    assert process.returncode == 1
    assert "RunFailed: The run was interrupted." in said
    assert f"--run-dir {tmp_path / 'run'} --resume" in said
    assert "Traceback" not in said
    assert (tmp_path / "run" / "report.html").is_file()
    # The interrupt may come between a new checkpoint and the removal of the one before.
    complete = (tmp_path / "run" / "checkpoints").glob("iteration-*")
    done = max(int(folder.name.removeprefix("iteration-")) for folder in complete)
    iterations = f"training.iterations={done + 2}"
    assert command(*arguments, "--resume", "--set", iterations)[0] == 0
    rows = map(json.loads, metrics.read_text().splitlines())
    assert [row["iteration"] for row in rows] == list(range(1, done + 3))
