"""Threads, and what environment.json says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flexrlhf.core.machine import physical_cores
from flexrlhf.runtime.environment import describe_environment, set_threads, source_commit


@pytest.mark.parametrize(
    ("threads", "wish", "count"),
    [
        (3, {}, 3),
        (3, {"OMP_NUM_THREADS": "1"}, 3),
        ("auto", {"OMP_NUM_THREADS": "5"}, 5),
        ("auto", {"OMP_NUM_THREADS": "4,2"}, 4),
        ("auto", {"OMP_NUM_THREADS": "many"}, physical_cores()),
        ("auto", {"OMP_NUM_THREADS": "0"}, physical_cores()),
        ("auto", {"OMP_NUM_THREADS": "100000"}, physical_cores()),
        ("auto", {"OMP_NUM_THREADS": "9" * 5000}, physical_cores()),
        ("auto", {}, physical_cores()),
    ],
)
def test_threads(threads, wish, count, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    environment = dict(wish)
    assert set_threads(threads, environment) == count
    assert environment == dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count)
    )


def test_torch_that_is_loaded_already_gets_the_threads():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        set_threads(before + 1, {})
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_the_description_is_json_and_has_no_empty_facts():
    facts = describe_environment("flexrlhf train run.yaml")
    assert json.loads(json.dumps(facts)) == facts
    assert facts["command"] == "flexrlhf train run.yaml"
    assert facts["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert facts["packages"]["numpy"]
    assert facts["physical_cores"] <= facts["logical_cpus"]
    assert all(value not in (None, "") for value in facts.values())


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_is_that_of_the_package_not_of_a_checkout_around_it(tmp_path: Path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert source_commit(package) == {}
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "other things")
    assert source_commit(package) == {}
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-q", "-m", "the package")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert source_commit(package) == {"commit": commit, "has_changes": False}
    (package / "__init__.py").write_text("x = 1")
    assert source_commit(package) == {"commit": commit, "has_changes": True}
