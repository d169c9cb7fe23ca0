"""Stores that are asked without a network, and layouts of weights over them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from flexrlhf.core.errors import TransferLost
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.pieces import PIECES_KEY
from flexrlhf.learning.weights.relay import BLOCKS_KEY, RELAY_PREFIX, Relay
from flexrlhf.learning.weights.sharing import Sharing
from flexrlhf.learning.weights.store import WeightAnswer, WeightStore


class Network:
    """Stores by address; some may be down, or change what they send."""

    def __init__(self) -> None:
        self.stores: dict[str, WeightStore] = {}
        self.down: set[str] = set()
        self.fails_after: dict[str, int] = {}
        self.relays: dict[str, Relay] = {}
        self.tamper: Callable[[Tensor], None] | None = None
        self.tamper_relayed: Callable[[Tensor], None] | None = None
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self._lock = threading.Lock()

    def store(self, address: str) -> WeightStore:
        return self.stores.setdefault(address, WeightStore())

    def relay(self, address: str) -> Relay:
        return self.relays.setdefault(address, Relay())

    def sharing(self, own: str, replicas: list[str], *, wait_s: float = 20.0) -> Sharing:
        place = replicas.index(own)
        peers = [*replicas[place + 1 :], *replicas[:place]]
        return Sharing("shadow", own, peers, self.relay(own), self.ask, wait_s)

    def ask(self, address: str, key: str, query: Mapping[str, Any]) -> WeightAnswer:
        with self._lock:
            self.asked.append((address, key, query))
            if key in (PIECES_KEY, BLOCKS_KEY) and address in self.fails_after:
                self.fails_after[address] -= 1
                if self.fails_after[address] < 0:
                    self.down.add(address)
        if address in self.down:
            raise TransferLost(f"{address} is gone.")
        if key.startswith(RELAY_PREFIX):
            answer = self.relay(address).handle(key, query)
            if self.tamper_relayed is not None and key == BLOCKS_KEY:
                self.tamper_relayed(answer.tensors["data"])
            return answer
        answer = self.store(address).handle(key, query)
        if self.tamper is not None and key == PIECES_KEY:
            self.tamper(answer.tensors["data"])
        return answer

    def sent_pieces(self) -> list[tuple[str, str, Box]]:
        """Source, name and box of everything that was asked for."""
        return [
            (address, name, Box(tuple(start), tuple(stop)))
            for address, key, query in self.asked
            if key == PIECES_KEY
            for name, start, stop in query["pieces"]
        ]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def whole():
    def make(**tensors: Tensor) -> dict[str, Shard]:
        return {
            name: Shard(Box.whole(tuple(tensor.shape)), tuple(tensor.shape), tensor)
            for name, tensor in tensors.items()
        }

    return make


@pytest.fixture
def rows():
    """A tensor's rows from `low` to `high`, as one process of FSDP holds them."""

    def make(tensor: Tensor, low: int, high: int) -> Shard:
        box = Box((low, *(0 for _ in tensor.shape[1:])), (high, *tensor.shape[1:]))
        return Shard(box, tuple(tensor.shape), tensor[low:high].clone())

    return make


@pytest.fixture
def empty_like():
    def make(shards: Mapping[str, Shard], dtype: torch.dtype | None = None) -> dict[str, Shard]:
        return {
            name: Shard(
                shard.box,
                shard.shape,
                torch.zeros(shard.tensor.shape, dtype=dtype or shard.tensor.dtype),
                shard.tied,
            )
            for name, shard in shards.items()
        }

    return make
