"""Loading does not hold a model twice: pages of a mapped file go once they are copied."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.mapped_files import MappedFiles
from flexrlhf.learning.models.saving import write_model

PEAK = Path(__file__).parents[2] / "processes" / "whole_loading_peak.py"
NUM_BYTES = 64 * mmap.PAGESIZE

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are told of on Linux")


def resident(tensor: torch.Tensor) -> int:
    """Returns the bytes in memory of the mapping in which a tensor lies."""
    address, is_it = tensor.data_ptr(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and ":" not in first:
            begin, end = (int(edge, 16) for edge in first.split("-"))
            is_it = begin <= address < end
        elif is_it and first == "Rss:":
            return 1024 * int(rest[0])
    raise AssertionError("the tensor lies nowhere")


@only_linux
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama", {"hidden_size": 768, "num_hidden_layers": 10}),
        ("gpt2", {"n_embd": 768, "n_layer": 4}),
    ],
)
def test_a_model_is_not_here_twice_while_it_is_loaded(
    make_source, tmp_path: Path, family: str, sizes: dict[str, int]
):
    model = load_policy(make_source(family, dtype="float32", **sizes))
    num_bytes = sum(weight.nbytes for weight in model.parameters())
    assert num_bytes > 60 * 2**20, "beside less, what else a process takes is not small"
    write_model(model, None, tmp_path / "large")
    write_model(load_policy(make_source(family, dtype="float32")), None, tmp_path / "warm")
    ended = subprocess.run(
        [sys.executable, PEAK, tmp_path / "warm", tmp_path / "large", "float32"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert 0.9 * num_bytes < int(ended.stdout) < 1.3 * num_bytes


@only_linux
def test_pages_go_and_numbers_stay(tmp_path: Path) -> None:
    whole = {name: torch.randn(NUM_BYTES // 4) for name in ("first", "middle", "last")}
    save_file(whole, tmp_path / "weights")
    read = load_file(tmp_path / "weights")
    assert all(torch.equal(read[name], numbers) for name, numbers in whole.items())
    before = resident(read["middle"])
    MappedFiles().give_back(read["middle"])
    given_back = before - resident(read["middle"])
    assert NUM_BYTES - 2 * mmap.PAGESIZE <= given_back <= NUM_BYTES
    assert all(torch.equal(read[name], numbers) for name, numbers in whole.items())


@only_linux
def test_neighbours_in_the_file_keep_what_was_written_into_them(tmp_path: Path) -> None:
    save_file({name: torch.zeros(NUM_BYTES // 4) for name in ("a", "b", "c")}, tmp_path / "weights")
    read = load_file(tmp_path / "weights")
    for numbers in read.values():
        numbers.fill_(3)
    MappedFiles().give_back(read["b"])
    assert read["a"].eq(3).all()
    assert read["c"].eq(3).all()
    assert read["b"][2048:-2048].eq(0).all(), "its own pages are the file's again"


@only_linux
def test_every_other_column_of_a_mapped_weight_gives_nothing_back(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(64, NUM_BYTES // 64)}, tmp_path / "weights")
    columns = load_file(tmp_path / "weights")["a"].fill_(3)[:, ::2]
    MappedFiles().give_back(columns)
    assert columns.eq(3).all()


def test_memory_that_is_no_file_is_left_alone() -> None:
    numbers = torch.ones(2**22)
    files = MappedFiles()
    files.give_back(numbers)
    files.give_back(torch.empty(0))
    assert numbers.eq(1).all()
