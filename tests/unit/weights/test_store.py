from __future__ import annotations

import threading
import time

import pytest
import torch

from flexrlhf.core.errors import StaleWeights, WeightMismatch
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.pieces import PIECES_KEY, Piece, unpacked
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore


def read(store: WeightStore, version: int, name: str = "w", length: int = 4) -> torch.Tensor:
    piece = Piece(name, Box((0,), (length,)))
    query = {"role": "actor", "version": version, "pieces": [piece.to_json()]}
    data = store.handle(PIECES_KEY, query).tensors["data"]
    return unpacked(data, [(torch.float32, (length,))])[0]


def test_publishing_copies_nothing_and_protecting_copies_once(whole):
    store, live = WeightStore(), torch.zeros(4)
    store.publish("actor", 1, whole(w=live))
    store.publish("actor", 2, whole(w=live))
    held = store._roles["actor"].versions
    assert held[1].shards["w"].tensor.data_ptr() == live.data_ptr()
    store.protect("actor")
    copies = {version: held[version].shards["w"].tensor.data_ptr() for version in held}
    assert copies[1] == copies[2] != live.data_ptr()
    store.protect("actor")
    assert held[1].shards["w"].tensor.data_ptr() == copies[1]


def test_versions_keep_what_they_were_while_the_writer_goes_on(whole):
    store, live = WeightStore(), torch.zeros(4)
    for version in range(4):
        store.publish("actor", version, whole(w=live))
        store.protect("actor")
        live += 1.0
    assert [float(read(store, version)[0]) for version in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert store.versions("actor") == (0, 1, 2, 3)


def test_a_retired_version_costs_no_copy_and_is_not_given(whole):
    store, live = WeightStore(), torch.zeros(4)
    store.publish("actor", 1, whole(w=live))
    store.retire("actor", 1)
    store.protect("actor")
    assert store.versions("actor") == ()
    with pytest.raises(StaleWeights, match=r"Version 1 of actor is not here.\n  Here are none."):
        read(store, 1)
    store.publish("actor", 0, whole(w=live))
    assert store.versions("actor") == ()
    store.publish("actor", 3, whole(w=live))
    with pytest.raises(ValueError, match="published already"):
        store.publish("actor", 3, whole(w=live))


def test_writing_without_protecting_is_found(whole):
    store, live = WeightStore(), torch.zeros(4)
    store.publish("actor", 1, whole(w=live))
    live += 1.0
    with pytest.raises(WeightMismatch, match="was written after it was published as version 1"):
        read(store, 1)
    with pytest.raises(WeightMismatch, match="Protect the role's weights"):
        store.protect("actor")


def test_weights_without_a_count_of_writes_are_given_too(whole):
    with torch.inference_mode():
        live = torch.ones(4)
    store = WeightStore()
    store.publish("actor", 1, whole(w=live))
    store.protect("actor")
    assert torch.equal(read(store, 1), torch.ones(4))


def test_only_what_is_held_is_given(whole, rows):
    store = WeightStore()
    store.publish("actor", 1, {"w": rows(torch.zeros(4), 1, 4)})
    for name in ("w", "v"):
        with pytest.raises(StaleWeights, match=f"The part of '{name}' of actor"):
            read(store, 1, name)
    with pytest.raises(StaleWeights, match="no question"):
        store.handle("weights/all", {})


def test_a_writer_that_steps_does_not_change_what_a_slow_reader_reads(network, empty_like, whole):
    """Steps as fast as it can while versions are read bucket by bucket, with pauses."""
    names = [f"w{i}" for i in range(6)]
    live = {name: torch.zeros(64, 8) for name in names}
    store = network.store("trainer")
    store.publish("actor", 0, whole(**live))
    stop, seen, wrong = threading.Event(), [], []

    def write() -> None:
        version = 0
        while not stop.is_set():
            store.protect("actor")
            for tensor in live.values():
                tensor.add_(1.0)
            version += 1
            store.publish("actor", version, whole(**live))
            store.retire("actor", version - 50)

    def slow_ask(address, key, query):
        time.sleep(0.001)
        return network.ask(address, key, query)

    def pull_often() -> None:
        for _ in range(8):
            target = empty_like(whole(**live))
            try:
                staged = pull("actor", None, target, ["trainer"], slow_ask, bucket_bytes=512 * 4)
            except StaleWeights:
                continue  # retired meanwhile
            staged.install()
            seen.append(staged.version)
            if any((shard.tensor != staged.version).any() for shard in target.values()):
                wrong.append(staged.version)

    threads = [threading.Thread(target=pull_often) for _ in range(2)]
    writer = threading.Thread(target=write)
    for thread in (writer, *threads):
        thread.start()
    for thread in threads:
        thread.join(30.0)
    stop.set()
    writer.join(30.0)
    assert not wrong
    assert len(set(seen)) > 2


def test_a_copy_of_a_strided_shard_is_the_same_numbers():
    store, live = WeightStore(), torch.arange(12.0).view(3, 4)
    part = live[:, 1:3]
    store.publish("actor", 1, {"w": Shard(Box((0, 1), (3, 3)), (3, 4), part)})
    store.protect("actor")
    live.zero_()
    query = {"role": "actor", "version": 1, "pieces": [["w", [1, 1], [3, 3]]]}
    data = store.handle(PIECES_KEY, query).tensors["data"]
    assert unpacked(data, [(torch.float32, (2, 2))])[0].tolist() == [[5.0, 6.0], [9.0, 10.0]]
