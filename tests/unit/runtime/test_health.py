"""What doctor finds on machines that lack something."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from flexrlhf.core.machine import Memory
from flexrlhf.runtime import health, installation
from flexrlhf.runtime.installation import Package
from flexrlhf.runtime.machine import Gpu

GIB = 2**30


def test_this_machine_has_no_errors():
    pytest.importorskip("torch")
    findings = health.check_machine(Path(tempfile.gettempdir()) / "runs")
    assert [finding for finding in findings if finding.status == "error"] == []
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    assert {"python", "torch", "engines", "cores", "memory", "run folder", "gpu"} <= set(names)
    assert all(finding.detail for finding in findings)
    assert all(finding.advice for finding in findings if finding.status != "ok")


def test_the_declared_packages_are_those_of_pyproject():
    packages = {package.name: package for package in installation.declared_packages()}
    assert packages["torch"].extra == "train"
    assert packages["numpy"].extra == ""
    assert "pytest" not in packages
    assert str(packages["torch"].supported) == ">=2.11"


def test_an_old_python():
    assert health.check_python("3.13.1").status == "ok"
    finding = health.check_python("3.10.4")
    assert finding.status == "error"
    assert finding.detail == "3.10.4 (supported: >=3.11)"


@pytest.mark.parametrize(
    ("version", "extra", "status", "said"),
    [
        ("2.13.0+cpu", "train", "ok", "2.13.0+cpu (>=2.11)"),
        ("2.12.0.dev1", "train", "ok", "2.12.0.dev1"),
        ("2.4.0", "train", "error", "2.4.0 (supported: >=2.11)"),
        (None, "train", "warning", "not installed; it is needed for training"),
        (None, "", "error", "not installed"),
    ],
)
def test_packages(version, extra, status, said):
    package = Package("torch", SpecifierSet(">=2.11"), extra, version)
    (finding,) = health.check_packages([package])
    assert finding.status == status
    assert said in finding.detail
    assert (finding.advice != "") == (status != "ok")


def test_every_package_for_training_has_a_purpose():
    for package in installation.declared_packages():
        if package.extra == "train":
            assert package.name in health._PURPOSES


def test_a_source_folder_that_is_not_installed():
    (finding,) = health.check_packages([])
    assert finding.status == "warning"
    assert "pip install -e" in finding.advice


def test_engines_without_torch(monkeypatch):
    monkeypatch.setattr(health, "installed_version", lambda _: None)
    finding = health.check_engines()
    assert finding.status == "warning"
    assert finding.detail.startswith("none")


def test_a_broken_torch_is_an_error_not_a_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = health._check_torch()
    assert (finding.name, finding.status) == ("torch import", "error")


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        (None, "ok"),
        ("4", "ok"),
        ("1", "ok"),
        ("8", "warning"),
        ("8,1", "warning"),
        ("x", "warning"),
    ],
)
def test_threads_against_cores(wish, status):
    assert health.check_cores(4, wish).status == status


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (Memory(8 * GIB, 4 * GIB), "ok"),
        (Memory(8 * GIB, GIB), "warning"),
        (None, "warning"),
    ],
)
def test_memory(state, status, monkeypatch):
    monkeypatch.setattr(health, "memory", lambda: state)
    assert health.check_memory().status == status


@pytest.mark.parametrize(("free", "status"), [(9, "ok"), (3, "warning"), (0.5, "error")])
def test_disk(free, status, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(health, "free_disk_bytes", lambda _: int(free * GIB))
    finding = health.check_disk("disk", tmp_path / "runs")
    assert finding.status == status
    assert str(tmp_path) in finding.detail


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path: Path):
    assert health.check_writable(tmp_path / "runs").status == "ok"
    assert list(tmp_path.iterdir()) == []

    def refuse(**_: object):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(health.tempfile, "TemporaryFile", refuse)
    finding = health.check_writable(tmp_path / "runs")
    assert finding.status == "error"
    assert finding.detail == f"{tmp_path} cannot be written: Read-only file system"


@pytest.mark.parametrize(
    ("found", "has_driver", "status", "said"),
    [
        ([Gpu("H200", 141 * GIB)], True, "ok", "H200 (141.0 GiB)"),
        ([], True, "warning", "torch sees no GPU"),
        ([], False, "ok", "none"),
    ],
)
def test_gpus(found, has_driver, status, said, monkeypatch):
    monkeypatch.setattr(health, "gpus", lambda: found)
    monkeypatch.setattr(health, "has_nvidia_driver", lambda: has_driver)
    finding = health.check_gpus()
    assert finding.status == status
    assert said in finding.detail


def test_a_processor_that_miscalculates(monkeypatch):
    torch = pytest.importorskip("torch")
    assert health.check_arithmetic().status == "ok"
    multiply = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: multiply(a, b) + 0.5)
    assert health.check_arithmetic().status == "error"
