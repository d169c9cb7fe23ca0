"""The check of a GPU: what it says where something is missing, and that it runs on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
_HIDING = """
import os, sys

class Hiding:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        is_hidden = name.partition(".")[0] in os.environ["HIDDEN"].split(",")
        return None if is_hidden else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
_NOT_NEEDED = (
    *("ray", "datasets", "pyarrow", "gguf", "math_verify", "reasoning_gym"),
    *("plotly", "tensorboard", "rich", "typer"),
)


def check(
    folder: Path,
    *arguments: str,
    hidden: tuple[str, ...] = (),
    timeout_s: float = 200,
    file: str = "check.py",
) -> tuple[int, str]:
    """Runs the check, or the bench, where some packages are not there and no GPU is seen."""
    (folder / "sitecustomize.py").write_text(_HIDING)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "HIDDEN": ",".join(hidden),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(_FOLDER / file), *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_a_gpu_it_is_skipped(tmp_path: Path):
    code, said = check(tmp_path)
    assert code == 0
    assert said.startswith("gpu-check: skipped: torch")
    assert said.endswith("sees no GPU\n")


def test_without_torch_it_is_skipped(tmp_path: Path):
    code, said = check(tmp_path, hidden=("torch",))
    assert code == 0
    assert said == f"gpu-check: skipped: {sys.executable}: no torch\n"


def test_parts_that_lack_a_package_are_skipped_and_the_others_run(tmp_path: Path):
    hidden = ("transformers", "safetensors", "psutil", "pydantic", "yaml")
    code, said = check(tmp_path, "--device", "cpu", hidden=hidden)
    assert code == 0, said
    assert "formulas: ok" in said
    assert "models: skipped: no transformers, no safetensors, no psutil\n" in said
    assert "graphs: skipped: no transformers, no safetensors, no psutil\n" in said
    assert "runs: skipped: no transformers, no safetensors, no psutil, no pydantic" in said
    assert "gpu-check: 1 ok, 0 failed, 3 skipped" in said


@pytest.mark.full
@pytest.mark.timeout(600)
def test_both_layouts_run_on_a_cpu_with_nothing_but_what_it_names(tmp_path: Path):
    code, said = check(tmp_path, "--device", "cpu", hidden=_NOT_NEEDED, timeout_s=590)
    assert code == 0, said
    assert "disaggregated on cpu, float64: 96 answers: the same" in said
    assert "gpu-check: 4 ok, 0 failed, 0 skipped" in said


def test_the_bench_is_skipped_without_a_gpu_or_without_transformers(tmp_path: Path):
    code, said = check(tmp_path, file="bench.py")
    assert (code, said.startswith("gpu-bench: skipped: torch")) == (0, True)
    code, said = check(tmp_path, "--device", "cpu", hidden=("transformers",), file="bench.py")
    assert (code, said) == (0, "gpu-bench: skipped: no transformers\n")


def test_the_bench_times_generation_and_a_step(tmp_path: Path):
    out = tmp_path / "rows.json"
    code, said = check(tmp_path, "--device", "cpu", "--out", str(out), file="bench.py")
    assert code == 0, said
    rows = json.loads(out.read_text())
    assert [row["what"] for row in rows] == [
        "16 tokens for 1",
        "16 tokens for 8",
        "a step of 128 tokens",
    ]
    assert all(len(row["ours_s"]) == 3 and row["limit_s"] > 0 for row in rows)
    assert [len(row["theirs_s"]) for row in rows] == [3, 3, 0]
