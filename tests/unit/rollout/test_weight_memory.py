"""Storages are emptied and filled again without the tensors becoming others."""

from __future__ import annotations

import torch

from flexrlhf.learning.rollout.weight_memory import WeightMemory


def test_tensors_stay_the_same_and_each_storage_is_emptied_once() -> None:
    one, other = torch.arange(6.0), torch.zeros(2, dtype=torch.float64)
    version = one._version
    memory = WeightMemory([one, one.view(2, 3), other])
    memory.release(keep=False)
    assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    memory.regain()
    assert one.untyped_storage().nbytes() == 24
    assert other.untyped_storage().nbytes() == 16
    assert one._version == version
    one.copy_(torch.ones(6))
    assert one.view(2, 3).sum() == 6


def test_what_lies_in_host_memory_anyway_is_not_copied() -> None:
    tensor = torch.arange(6.0)
    memory = WeightMemory([tensor])
    address = tensor.data_ptr()
    memory.release(keep=True)
    memory.regain()
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, torch.arange(6.0))
