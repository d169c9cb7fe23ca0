"""The names that users import, and that looking at them costs no heavy import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import flexrlhf
from flexrlhf.core.errors import ConfigError

HEAVY = ("torch", "transformers", "datasets", "safetensors", "pandas", "pyarrow", "plotly", "ray")
_LOADED = f"""
import json, sys
{{code}}
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def loaded_by(code: str) -> list[str]:
    """Returns which heavy packages a fresh interpreter holds after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(code=code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_public_names():
    assert sorted(flexrlhf.__all__) == ["RunResult", "load_config", "plan", "report", "train"]


@pytest.mark.parametrize("name", flexrlhf.__all__)
def test_every_public_name_can_be_had_and_says_what_it_is(name: str):
    assert callable(getattr(flexrlhf, name))
    assert getattr(flexrlhf, name).__doc__


@pytest.mark.parametrize("earlier", ["", "import flexrlhf.report.page"])
def test_report_is_a_function_also_after_its_package_was_imported(tmp_path: Path, earlier: str):
    """Importing a sub-package of the same name would hide a plain function."""
    code = f"""
import flexrlhf
{earlier}
try:
    flexrlhf.report({str(tmp_path)!r})
except ValueError as error:
    assert "no run" in str(error) or "metrics" in str(error), error
else:
    raise AssertionError("an empty folder has no report")
"""
    assert "torch" not in loaded_by(code)


def test_the_version_is_that_of_the_package():
    assert flexrlhf.__version__ == metadata.version("flexrlhf")


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        flexrlhf.trian  # noqa: B018


def test_the_import_loads_nothing_heavy():
    assert loaded_by("import flexrlhf") == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["report", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]):
    code = f"""
from flexrlhf.cli import cli
try:
    cli({arguments!r})
except SystemExit as end:
    assert end.code == 0
"""
    assert loaded_by(code) == []


def test_reading_a_config_and_planning_load_nothing_heavy(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        "algorithm: {name: sft}\n"
        "model: {actor: {shape: smollm2-135m}}\n"
        "data: {supervised: {path: rows.jsonl}}\n"
    )
    code = f"import flexrlhf; flexrlhf.plan(flexrlhf.load_config({str(config)!r}))"
    assert loaded_by(code) == []


def test_the_command_that_is_installed():
    entry_points = metadata.entry_points(group="console_scripts", name="flexrlhf")
    assert [entry.value for entry in entry_points] == ["flexrlhf.cli:main"]


def test_one_plan_is_no_plan_for_several_stages(tmp_path: Path):
    stage = {"algorithm": {"name": "sft"}, "model": {"actor": {"path": "models/actor"}}}
    document = {
        "stages": [{"name": "sft", **stage, "data": {"supervised": {"path": "rows.jsonl"}}}]
    }
    (tmp_path / "run.yaml").write_text(json.dumps(document))
    config = flexrlhf.load_config(tmp_path / "run.yaml")
    (plan,) = flexrlhf.plan(config)
    with pytest.raises(ConfigError, match="Each stage has a plan of its own"):
        flexrlhf.train(config, plan)
