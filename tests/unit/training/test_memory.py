"""Peak memory is that of the span since the last reset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from flexrlhf.core import machine
from flexrlhf.learning.training import memory

CPU = torch.device("cpu")
MIB = 1 << 20
has_peaks = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="this system cannot reset the peak memory of a process",
)


def use(mebibytes: int) -> None:
    """Takes memory, touches it and gives it back."""
    torch.ones(mebibytes * MIB // 4, dtype=torch.float32)


@has_peaks
def test_the_peak_outlives_what_caused_it_and_ends_with_a_reset():
    memory.reset_peak(CPU)
    before = memory.peak_bytes(CPU)
    use(96)
    assert 80 * MIB < memory.peak_bytes(CPU) - before < 140 * MIB
    memory.reset_peak(CPU)
    assert memory.peak_bytes(CPU) - before < 40 * MIB


@has_peaks
def test_the_peak_is_never_below_what_is_held():
    memory.reset_peak(CPU)
    assert memory.peak_bytes(CPU) >= memory.held_bytes(CPU) - MIB


def test_held_memory_grows_with_a_tensor():
    before = memory.held_bytes(CPU)
    held = torch.ones(64 * MIB // 4)
    assert memory.held_bytes(CPU) - before > 48 * MIB
    del held


def test_free_memory_is_within_that_of_the_machine():
    assert 0 < memory.free_bytes(CPU) < 1 << 50


def test_a_containers_limit_bounds_what_is_free(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(100 * MIB, 7 * MIB))
    assert memory.free_bytes(CPU) == 7 * MIB


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_a_container_that_forbids_the_reset(monkeypatch, error):
    def refuse(path: Path, text: str) -> None:
        raise error(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    memory.reset_peak(CPU)


def test_without_a_proc_the_peak_is_what_is_held(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "clear_refs")
    memory.reset_peak(CPU)
    assert memory.peak_bytes(CPU) == pytest.approx(memory.held_bytes(CPU), rel=0.1)


def test_what_torch_caches_on_a_gpu_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * MIB, 80 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20 * MIB)
    assert memory.free_bytes(torch.device("cuda")) == 40 * MIB


@has_peaks
@pytest.mark.skipif(memory._glibc() is None, reason="only glibc can be told to give memory back")
def test_what_is_freed_goes_back_when_asked():
    blocks = [torch.ones(MIB // 64) for _ in range(2048)]  # 64 KiB each: small enough for the heap
    del blocks
    before = memory.held_bytes(CPU)
    memory.give_back_freed(CPU)
    assert memory.held_bytes(CPU) <= before


def test_all_threads_share_one_heap_where_the_library_can():
    memory.share_one_heap()
    assert torch.ones(4).sum() == 4
