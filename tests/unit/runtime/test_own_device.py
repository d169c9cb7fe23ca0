"""The device of a worker: a GPU that it sees, or the reason why there is none."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.runtime.devices.own_device import take_device, wait_for_kernels


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A torch that sees four GPUs; the list takes down which ones were made the present one."""
    present: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", present.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return present


def test_a_core_needs_nothing():
    device = take_device("cpu")
    wait_for_kernels(device)
    assert device == torch.device("cpu")


def test_a_worker_takes_the_gpu_of_its_local_rank(four_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert take_device("cuda") == torch.device("cuda", 2)
    assert four_gpus == [2]


def test_a_gpu_that_alone_is_visible_is_meant_whatever_the_rank(four_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert take_device("cuda") == torch.device("cuda", 0)


def test_a_worker_without_a_gpu_says_where_to_look(four_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ConfigError, match="GPU 4, and torch sees 4") as caught:
        take_device("cuda")
    assert "CUDA_VISIBLE_DEVICES" in caught.value.do
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees 0"):
        take_device("cuda")
