"""The memory of weights that are not in use: emptied in place, so that tensors stay the same."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class WeightMemory:
    """Storages that can be given back to the device and taken again.

    Args:
        tensors: whose storages these are; tied ones may repeat.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = [tensor.untyped_storage() for tensor in tensors]
        by_address = {storage.data_ptr(): storage for storage in storages}
        self._storages = list(by_address.values())
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._kept: list[torch.UntypedStorage] = []

    def release(self, *, keep: bool) -> None:
        """Empties the storages.

        Args:
            keep: have the bytes back after `regain`; they wait in host memory. What lies there
                anyway is then left alone, since nothing would be gained.
        """
        if keep:
            if all(storage.device.type == "cpu" for storage in self._storages):
                return
            self._kept = [storage.cpu() for storage in self._storages]
        for storage in self._storages:
            storage.resize_(0)

    def regain(self) -> None:
        """Takes the memory again, with the bytes that were kept; without them it is not filled."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            if storage.nbytes() != size:
                storage.resize_(size)
        for storage, kept in zip(self._storages, self._kept, strict=False):
            storage.copy_(kept)
        self._kept = []
