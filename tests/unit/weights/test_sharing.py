"""Replicas that take a version at the same time, and those that have installed it, serve others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from flexrlhf.core.errors import StaleWeights, TransferLost, WeightMismatch
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.weights.pieces import Piece
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.receipt import Receipt
from flexrlhf.learning.weights.relay import BLOCKS_KEY
from flexrlhf.learning.weights.staging import Staged

REPLICAS = ["replica0", "replica1", "replica2"]


@pytest.fixture
def model():
    generator = torch.Generator().manual_seed(3)
    layers = {f"layer{i}": torch.randn(64, 32, generator=generator) for i in range(16)}
    return {**layers, "embedding": torch.randn(4096, 256, generator=generator)}


def num_bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


@pytest.fixture
def pull_together(network):
    """Lets several replicas pull at once from the trainer and from each other."""

    def run(targets: dict[str, Any], version: int = 1, **keys: Any) -> list[Staged]:
        for replica, shards in targets.items():
            network.relay(replica).want("shadow", shards)
        return together(
            [
                lambda replica=replica, shards=shards: pull(
                    "actor",
                    version,
                    shards,
                    ["trainer"],
                    network.ask,
                    sharing=network.sharing(replica, list(targets), **keys),
                )
                for replica, shards in targets.items()
            ]
        )

    return run


def of_trainer(receipts: list[Receipt]) -> int:
    return sum(receipt.bytes_by_source.get("trainer", 0) for receipt in receipts)


def test_three_replicas_take_one_copy_from_the_trainer(
    network, whole, empty_like, model, pull_together
):
    network.store("trainer").publish("actor", 1, whole(**model))
    targets = {replica: empty_like(whole(**model)) for replica in REPLICAS}
    receipts = [staged.install() for staged in pull_together(targets)]
    for shards in targets.values():
        assert all(torch.equal(shards[name].tensor, tensor) for name, tensor in model.items())
    assert [receipt.num_bytes for receipt in receipts] == [num_bytes(model)] * 3
    assert of_trainer(receipts) == num_bytes(model)
    for place, receipt in enumerate(receipts):
        others = {*REPLICAS, "trainer"} - {REPLICAS[place]}
        assert set(receipt.bytes_by_source) == others
        assert receipt.source_checksum == receipts[0].source_checksum
        assert receipt.bytes_by_source["trainer"] < 0.5 * num_bytes(model)


def test_replicas_of_two_parts_take_each_part_once(
    network, whole, rows, empty_like, model, pull_together
):
    """Two replicas over two processes each: rows are split between these, the norm is not."""
    norm = torch.ones(8)
    shards = whole(norm=norm, **model)
    network.store("trainer").publish("actor", 1, shards)
    halves = {}
    for replica in ("a", "b"):
        for part in (0, 1):
            held = {
                name: rows(tensor, part * len(tensor) // 2, (part + 1) * len(tensor) // 2)
                for name, tensor in model.items()
            }
            halves[f"{replica}{part}"] = empty_like({**held, **whole(norm=norm)})
    receipts = [staged.install() for staged in pull_together(halves)]
    for place, held in halves.items():
        low = int(place[1]) * 32
        assert torch.equal(held["layer5"].tensor, model["layer5"][low : low + 32])
        assert torch.equal(held["norm"].tensor, norm)
    assert of_trainer(receipts) == num_bytes(model) + norm.nbytes


def test_what_a_peer_gives_has_the_checksum_of_the_trainer(
    network, whole, empty_like, model, pull_together
):
    network.store("trainer").publish("actor", 1, whole(**model))

    def flip(data: torch.Tensor) -> None:
        data[5] ^= 1

    network.tamper_relayed = flip
    targets = {replica: empty_like(whole(**model)) for replica in REPLICAS}
    with pytest.raises(WeightMismatch, match=r"Version 1 of actor did not come from replica\d as"):
        pull_together(targets)
    assert not any(shard.tensor.any() for held in targets.values() for shard in held.values())


def test_a_peer_that_vanishes_is_replaced_by_the_trainer(
    network, whole, empty_like, model, pull_together
):
    network.store("trainer").publish("actor", 1, whole(**model))
    network.fails_after["replica1"] = 1
    targets = {replica: empty_like(whole(**model)) for replica in REPLICAS}
    receipts = [staged.install() for staged in pull_together(targets)]
    for shards in targets.values():
        assert all(torch.equal(shards[name].tensor, tensor) for name, tensor in model.items())
    copies = of_trainer(receipts) / num_bytes(model)
    assert 1.0 < copies < 2.0


def test_a_peer_that_never_begins_is_waited_for_a_while(
    network, whole, empty_like, model, pull_together
):
    network.store("trainer").publish("actor", 1, whole(**model))
    network.relay("idle").want("shadow", whole(**model))
    target = empty_like(whole(**model))
    sharing = network.sharing("replica0", ["replica0", "idle"], wait_s=0.3)
    start_s = time.monotonic()
    staged = pull("actor", 1, target, ["trainer"], network.ask, sharing=sharing)
    assert 0.3 <= time.monotonic() - start_s < 5.0
    assert staged.install().bytes_by_source == {"trainer": num_bytes(model)}
    assert torch.equal(target["embedding"].tensor, model["embedding"])


def test_nobody_waits_for_a_peer_that_lost_the_trainer(network, whole, empty_like, model):
    network.store("trainer").publish("actor", 1, whole(**model))
    pair = REPLICAS[:2]
    targets = {replica: empty_like(whole(**model)) for replica in pair}
    for replica, shards in targets.items():
        network.relay(replica).want("shadow", shards)

    def cut_off(address, key, query):
        if key == "weights/pieces":
            raise TransferLost("no way there")
        return network.ask(address, key, query)

    def pulling(replica, ask):
        shards, sharing = targets[replica], network.sharing(replica, pair)
        return pull("actor", 1, shards, ["trainer"], ask, sharing=sharing)

    def lost() -> str:
        with pytest.raises(TransferLost, match="no way there"):
            pulling(pair[0], cut_off)
        return "lost"

    start_s = time.monotonic()
    _, staged = together([lost, lambda: pulling(pair[1], network.ask)])
    assert time.monotonic() - start_s < 10.0
    assert staged.install().bytes_by_source == {"trainer": num_bytes(model)}


def test_who_installed_a_version_gives_it_to_one_that_is_several_behind(
    network, whole, empty_like, model
):
    for version in (1, 2, 3):
        changed = {name: tensor * version for name, tensor in model.items()}
        network.store("trainer").publish("actor", version, whole(**changed))
    network.store("replica0").publish("shadow", 3, whole(**changed))
    target = empty_like(whole(**model))
    pull("actor", 1, target, ["trainer"], network.ask).install()
    sharing = network.sharing("replica1", REPLICAS[:2])
    receipt = pull("actor", 3, target, ["trainer"], network.ask, sharing=sharing).install()
    assert (receipt.version, receipt.num_bytes) == (3, num_bytes(model))
    assert set(receipt.bytes_by_source) == {"trainer", "replica0"}
    assert of_trainer([receipt]) < 0.6 * num_bytes(model)
    assert all(torch.equal(target[name].tensor, tensor) for name, tensor in changed.items())


def test_a_replica_that_installs_does_not_change_what_a_peer_reads(network, whole, empty_like):
    """A replica installs version after version while others read those before, in small buckets."""
    names = [f"w{i}" for i in range(6)]
    trained = {name: torch.zeros(64, 8) for name in names}
    held = empty_like(whole(**trained))
    trainer, replica = network.store("trainer"), network.store("replica0")
    stop, seen, wrong = threading.Event(), [], []

    def install_often() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            for tensor in trained.values():
                tensor.add_(1.0)
            trainer.publish("actor", version, whole(**trained))
            staged = pull("actor", version, held, ["trainer"], network.ask)
            replica.protect("shadow")
            staged.install()
            replica.publish("shadow", version, held)
            replica.retire("shadow", version - 50)
            trainer.retire("actor", version)

    def slow_ask(address, key, query):
        time.sleep(0.001)
        return network.ask(address, key, query)

    def read_often() -> None:
        for _ in range(8):
            target = empty_like(whole(**trained))
            try:
                staged = pull("shadow", None, target, ["replica0"], slow_ask, bucket_bytes=2048)
            except StaleWeights:
                continue  # retired meanwhile, or nothing is installed yet
            staged.install()
            seen.append(staged.version)
            if any((shard.tensor != staged.version).any() for shard in target.values()):
                wrong.append(staged.version)

    readers = [threading.Thread(target=read_often) for _ in range(2)]
    writer = threading.Thread(target=install_often)
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join(30.0)
    stop.set()
    writer.join(30.0)
    assert not wrong
    assert len(set(seen)) > 2


def test_a_relay_that_has_gone_on_refuses_an_older_version_at_once(network):
    relay = network.relay("replica0")
    block = Piece("w", Box.whole((4,)))
    relay.begin("shadow", 1, [block])
    relay.end("shadow", 1)
    relay.begin("shadow", 2, [block])
    relay.end("shadow", 1)
    query = {"role": "shadow", "version": 1, "blocks": [block.to_json()], "wait_s": 20.0}
    start_s = time.monotonic()
    with pytest.raises(StaleWeights, match="Parts of version 1 of shadow do not come"):
        network.ask("replica0", BLOCKS_KEY, query)
    assert time.monotonic() - start_s < 1.0
    with pytest.raises(StaleWeights, match=r"not within 0\.1 s"):
        network.ask("replica0", BLOCKS_KEY, {**query, "version": 2, "wait_s": 0.1})
