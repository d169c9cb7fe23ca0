"""Facts of the machine, read from made-up kernel files."""

from __future__ import annotations

from pathlib import Path

from flexrlhf.runtime import machine


def test_the_disk_of_a_folder_to_be(tmp_path: Path):
    future = tmp_path / "runs" / "ppo"
    assert machine.existing_folder(future) == tmp_path
    assert machine.free_disk_bytes(future) > 0


def test_the_processor_has_a_name(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9\n")
    assert machine.processor_name(tmp_path) == "Abacus 9"
    assert machine.processor_name(tmp_path / "none")
