"""The search for a micro-batch grows, stops at each of its limits, and never overshoots."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.training import micro_batch
from flexrlhf.learning.training.micro_batch import CPU_TOKENS, find_micro_batch_tokens

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MIB = 1 << 20
LARGE = 1 << 50


class Device:
    """Memory in which each sequence of a step takes `per_sequence` bytes."""

    def __init__(self, monkeypatch, *, free: int, per_sequence: int = MIB) -> None:
        self.tried: list[int] = []
        self._per_sequence = per_sequence
        self._most: int | None = None
        monkeypatch.setattr(micro_batch, "held_bytes", lambda device: 100 * MIB)
        monkeypatch.setattr(micro_batch, "reset_peak", lambda device: None)
        monkeypatch.setattr(micro_batch, "free_bytes", lambda device: free)
        monkeypatch.setattr(micro_batch, "peak_bytes", self._peak)

    def run_out_above(self, most: int) -> None:
        """Lets steps of more sequences fail, whatever the free memory had foretold."""
        self._most = most

    def _step(self, count: int) -> None:
        self.tried.append(count)
        if self._most is not None and count > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def _peak(self, device: torch.device) -> int:
        return 100 * MIB + self._per_sequence * self.tried[-1]

    def search(self, *, num_samples: int, longest: int = 10, reserved: int = 0, device=GPU) -> int:
        return find_micro_batch_tokens(
            self._step,
            longest=longest,
            num_samples=num_samples,
            reserved_bytes=reserved,
            device=device,
        )


def test_it_grows_fourfold_up_to_the_whole_mini_batch(monkeypatch):
    device = Device(monkeypatch, free=LARGE)
    assert device.search(num_samples=16) == 160
    assert device.tried == [1, 4, 16]


def test_a_mini_batch_that_is_no_power_of_two(monkeypatch):
    device = Device(monkeypatch, free=LARGE)
    assert device.search(num_samples=11) == 110
    assert device.tried == [1, 4, 11]


def test_one_sequence_alone(monkeypatch):
    device = Device(monkeypatch, free=0)
    assert device.search(num_samples=1) == 10
    assert device.tried == [1]


# 80 % of the free memory may be filled: of 10 MiB eight sequences of 1 MiB, but not nine.
@pytest.mark.parametrize(("free", "fitting"), [(10, 8), (9, 7), (21, 16), (2, 1), (0, 1)])
def test_it_stops_before_memory_is_predicted_to_run_out(monkeypatch, free: int, fitting: int):
    device = Device(monkeypatch, free=free * MIB)
    assert device.search(num_samples=64) == 10 * fitting
    assert max(device.tried) == fitting


def test_memory_that_others_will_take_is_left_free(monkeypatch):
    device = Device(monkeypatch, free=20 * MIB)
    assert device.search(num_samples=64, reserved=10 * MIB) == 80


@pytest.mark.parametrize(
    ("longest", "count"), [(CPU_TOKENS // 8, 8), (CPU_TOKENS // 3, 3), (CPU_TOKENS + 1, 1)]
)
def test_on_a_cpu_it_stops_at_the_useful_size(monkeypatch, longest: int, count: int):
    device = Device(monkeypatch, free=LARGE)
    found = device.search(num_samples=64, longest=longest, device=CPU)
    assert found == count * longest
    assert max(device.tried) == count


@pytest.mark.parametrize(("most", "found"), [(1, 10), (3, 10), (4, 40), (15, 40), (16, 160)])
def test_a_step_that_runs_out_of_memory_leaves_the_last_size_that_fitted(monkeypatch, most, found):
    device = Device(monkeypatch, free=LARGE)
    device.run_out_above(most)
    assert device.search(num_samples=16) == found


def test_one_sequence_that_runs_out_of_memory_is_said_in_three_parts(monkeypatch):
    device = Device(monkeypatch, free=LARGE)
    device.run_out_above(0)
    with pytest.raises(ConfigError) as caught:
        device.search(num_samples=16)
    assert "One sequence of 10 tokens does not fit in the memory of cuda" in caught.value.wrong
    assert caught.value.right
    assert "gradient_checkpointing" in caught.value.do


def test_a_step_that_takes_no_memory_is_no_division_by_zero(monkeypatch):
    device = Device(monkeypatch, free=LARGE, per_sequence=0)
    assert device.search(num_samples=4) == 40


def test_real_memory():
    """Each sequence takes 8 MiB, so what fits is known from the bytes that are free."""
    tried = []

    def step(count: int) -> None:
        tried.append(count)
        torch.ones(count * 8 * MIB // 4)

    found = find_micro_batch_tokens(step, longest=100, num_samples=6, reserved_bytes=0, device=CPU)
    assert found == 100 * tried[-1]
    assert tried == [1, 4, 6][: len(tried)]
