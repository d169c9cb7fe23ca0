from __future__ import annotations

import json

import pytest
import torch

from flexrlhf.core.errors import ShapeError, StaleWeights, TransferLost, WeightMismatch
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard, whole_shards
from flexrlhf.learning.weights.pieces import CATALOGUE_KEY
from flexrlhf.learning.weights.pulling import pull


@pytest.fixture
def values() -> torch.Tensor:
    return torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_load_spreads_over_replicas(network, whole, empty_like):
    shards = whole(**{f"layer{i}": torch.full((8, 4), float(i)) for i in range(12)})
    for address in ("a", "b", "c"):
        network.store(address).publish("actor", 1, shards)
    targets = empty_like(shards)
    receipt = pull("actor", 1, targets, ["a", "b", "c"], network.ask).install()
    assert receipt.bytes_by_source == {"a": 512, "b": 512, "c": 512}
    assert receipt.num_weights == 12
    assert all((targets[f"layer{i}"].tensor == i).all() for i in range(12))


def test_one_large_weight_is_shared_out_too(network, whole, empty_like):
    shards = whole(embedding=torch.randn(4096, 256), bias=torch.ones(3))
    for address in ("a", "b"):
        network.store(address).publish("actor", 1, shards)
    targets = empty_like(shards)
    receipt = pull("actor", 1, targets, ["a", "b"], network.ask).install()
    assert torch.equal(targets["embedding"].tensor, shards["embedding"].tensor)
    assert min(receipt.bytes_by_source.values()) > 0.49 * receipt.num_bytes


def test_buckets_bound_what_is_asked_for_at_once(network, whole, empty_like):
    shards = whole(**{f"layer{i}": torch.randn(10, 10) for i in range(5)})
    network.store("a").publish("actor", 1, shards)
    pull("actor", 1, empty_like(shards), ["a"], network.ask, bucket_bytes=1000).install()
    sizes = [
        4 * sum(Box(tuple(start), tuple(stop)).num_elements for _, start, stop in query["pieces"])
        for _, key, query in network.asked
        if key != CATALOGUE_KEY
    ]
    assert max(sizes) <= 1000
    assert sum(sizes) == 2000
    assert len(sizes) <= 5


def test_who_has_installed_a_version_gives_it_to_others(network, rows, whole, empty_like, values):
    network.store("trainer0").publish("actor", 2, {"w": rows(values, 0, 5)})
    network.store("trainer1").publish("actor", 2, {"w": rows(values, 5, 8)})
    trainers = ["trainer0", "trainer1"]
    first = empty_like(whole(w=values))
    pull("actor", 2, first, trainers, network.ask).install()
    network.store("shadow0").publish("actor", 2, first)
    network.down |= set(trainers)
    second = {"w": rows(torch.zeros_like(values), 3, 7)}
    pull("actor", 2, second, [*trainers, "shadow0"], network.ask).install()
    assert torch.equal(second["w"].tensor, values[3:7])


def test_a_replica_that_is_behind_takes_the_newest_whole_version_only(
    network, rows, whole, empty_like, values
):
    for version in (3, 4, 5):
        network.store("a").publish("actor", version, {"w": rows(values * version, 0, 4)})
        network.store("b").publish("actor", version, {"w": rows(values * version, 4, 8)})
    network.store("a").publish("actor", 6, {"w": rows(values, 0, 4)})
    target = empty_like(whole(w=values))
    staged = pull("actor", None, target, ["a", "b"], network.ask)
    assert staged.version == 5
    assert staged.install().num_bytes == values.nbytes
    assert torch.equal(target["w"].tensor, values * 5)


def test_a_version_that_is_not_whole_is_not_fetched(network, rows, whole, empty_like, values):
    network.store("a").publish("actor", 1, {"w": rows(values, 0, 4), "v": rows(values, 0, 8)})
    target = empty_like(whole(w=values))
    with pytest.raises(StaleWeights, match=r"Version 1 of actor cannot be had.* has w"):
        pull("actor", 1, target, ["a"], network.ask)
    with pytest.raises(StaleWeights, match="has absent"):
        pull("actor", 1, empty_like(whole(absent=values)), ["a"], network.ask)
    with pytest.raises(StaleWeights, match="Version 7"):
        pull("actor", 7, target, ["a"], network.ask)
    with pytest.raises(StaleWeights, match="A whole version of critic"):
        pull("critic", None, target, ["a"], network.ask)
    assert not network.sent_pieces()


def test_a_dead_source_is_replaced_by_another_with_the_same_box(network, whole, empty_like, values):
    shards = whole(**{f"w{i}": values + i for i in range(8)})
    for address in ("a", "b"):
        network.store(address).publish("actor", 1, shards)
    network.fails_after["a"] = 1
    target = empty_like(shards)
    receipt = pull("actor", 1, target, ["a", "b"], network.ask, bucket_bytes=300).install()
    assert all(torch.equal(target[name].tensor, shards[name].tensor) for name in shards)
    assert receipt.bytes_by_source == {"a": 256, "b": 7 * 256}


def test_a_dead_source_alone_with_its_box_ends_the_pull_and_installs_nothing(
    network, rows, whole, empty_like, values
):
    network.store("a").publish("actor", 1, {"w": rows(values, 0, 4)})
    network.store("b").publish("actor", 1, {"w": rows(values, 4, 8)})
    network.fails_after["b"] = 0
    target = empty_like(whole(w=values))
    with pytest.raises(TransferLost, match=r"cannot be had.*b: b is gone"):
        pull("actor", 1, target, ["a", "b"], network.ask)
    assert not target["w"].tensor.any()


def test_a_version_retired_meanwhile_ends_the_pull(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))

    def ask(address, key, query):
        if key != CATALOGUE_KEY:
            network.store("a").retire("actor", 1)
        return network.ask(address, key, query)

    with pytest.raises(StaleWeights, match=r"Version 1 of actor is not here"):
        pull("actor", 1, empty_like(whole(w=values)), ["a"], ask)


def test_a_changed_byte_is_found_before_anything_is_installed(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values, v=values + 1))

    def flip(data: torch.Tensor) -> None:
        data[-1] ^= 1

    network.tamper = flip
    target = empty_like(whole(w=values, v=values))
    with pytest.raises(WeightMismatch, match="did not come from a as it was sent"):
        pull("actor", 1, target, ["a"], network.ask)
    assert not target["w"].tensor.any()


def test_an_answer_of_another_length_is_found(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))
    network.tamper = lambda data: data.resize_(8)
    with pytest.raises(WeightMismatch, match="8 bytes came for 256"):
        pull("actor", 1, empty_like(whole(w=values)), ["a"], network.ask)


def test_memory_that_does_not_keep_what_is_written_is_found(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))
    target = empty_like(whole(w=values))
    staged = pull("actor", 1, target, ["a"], network.ask)
    broken = torch.zeros(1, 4, dtype=torch.float64).expand(8, 4)
    (piece,) = staged._pieces
    object.__setattr__(piece.target, "tensor", broken.clone())
    piece.tensor[0, 0] += 1.0
    with pytest.raises(WeightMismatch, match=r"'w' of actor from \(0, 0\) to \(8, 4\)"):
        staged.install()


def test_a_version_is_installed_once(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))
    staged = pull("actor", 1, empty_like(whole(w=values)), ["a"], network.ask)
    staged.install()
    with pytest.raises(ValueError, match="installed before"):
        staged.install()


class Tied(torch.nn.Module):
    def __init__(self, *, is_tied: bool = True):
        super().__init__()
        self.embedding = torch.nn.Linear(4, 6, bias=False)
        self.head = torch.nn.Linear(4, 6, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight


def test_tied_weights_move_once_and_are_counted(network):
    source, target = Tied(), Tied()
    network.store("a").publish("actor", 1, whole_shards(source))
    receipt = pull("actor", 1, whole_shards(target), ["a"], network.ask).install()
    assert (receipt.num_weights, receipt.num_tied_names, receipt.num_bytes) == (1, 1, 96)
    assert torch.equal(target.head.weight, source.embedding.weight)


def test_names_of_one_memory_are_tied_though_nobody_says_so(network):
    def named(model: Tied) -> dict[str, Shard]:
        return {
            name: Shard(Box.whole((6, 4)), (6, 4), tensor.detach())
            for name, tensor in model.named_parameters(remove_duplicate=False)
        }

    source, target = Tied(), Tied()
    network.store("a").publish("actor", 1, named(source))
    receipt = pull("actor", 1, named(target), ["a"], network.ask).install()
    assert (receipt.num_tied_names, receipt.num_bytes) == (1, 96)


def test_a_source_that_ties_fills_a_target_that_does_not(network):
    source, target = Tied(), Tied(is_tied=False)
    network.store("a").publish("actor", 1, whole_shards(source))
    pull("actor", 1, whole_shards(target), ["a"], network.ask).install()
    assert torch.equal(target.head.weight, source.head.weight)
    assert torch.equal(target.embedding.weight, source.head.weight)


def test_a_target_that_ties_what_differs_at_the_source_is_a_mismatch(network):
    source, target = Tied(is_tied=False), Tied()
    network.store("a").publish("actor", 1, whole_shards(source))
    staged = pull("actor", 1, whole_shards(target), ["a"], network.ask)
    with pytest.raises(WeightMismatch, match=r"'embedding.weight' of actor"):
        staged.install()
    with torch.no_grad():
        source.head.weight.copy_(source.embedding.weight)
    network.store("b").publish("actor", 1, whole_shards(source))
    receipt = pull("actor", 1, whole_shards(target), ["b"], network.ask).install()
    assert receipt.num_bytes == 2 * 96


def test_types_are_cast_when_installed(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values.float()))
    for dtype in (torch.bfloat16, torch.float64):
        target = empty_like(whole(w=values), dtype)
        receipt = pull("actor", 1, target, ["a"], network.ask).install()
        assert torch.equal(target["w"].tensor, values.float().to(dtype))
        assert receipt.source_checksum == receipt.installed_checksum
        assert receipt.num_bytes == 128


def test_a_rounded_copy_is_no_source_for_a_wider_target(network, whole, empty_like, values):
    network.store("shadow").publish("actor", 1, whole(w=values.bfloat16()))
    network.store("trainer").publish("actor", 1, whole(w=values.float()))
    wide = empty_like(whole(w=values), torch.float32)
    receipt = pull("actor", 1, wide, ["shadow", "trainer"], network.ask).install()
    assert list(receipt.bytes_by_source) == ["trainer"]
    narrow = empty_like(whole(w=values), torch.bfloat16)
    receipt = pull("actor", 1, narrow, ["shadow", "trainer"], network.ask).install()
    assert list(receipt.bytes_by_source) == ["shadow"]
    assert torch.equal(narrow["w"].tensor, values.bfloat16())


def test_weights_of_another_shape_are_refused(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))
    with pytest.raises(ShapeError, match=r"\(8, 4\) at a"):
        pull("actor", 1, empty_like(whole(w=values.T)), ["a"], network.ask)


def test_the_catalogue_holds_no_bytes_and_does_not_grow_with_the_weights(network, whole):
    sizes = []
    for width in (10, 99):
        store = network.store(str(width))
        store.publish("actor", 1, whole(w=torch.zeros(width, width)))
        answer = store.handle(CATALOGUE_KEY, {"role": "actor", "version": None})
        assert not answer.tensors
        sizes.append(len(json.dumps(answer.header)))
    assert sizes[0] == sizes[1]


def test_a_receipt_is_json(network, whole, empty_like, values):
    network.store("a").publish("actor", 1, whole(w=values))
    receipt = pull("actor", 1, empty_like(whole(w=values)), ["a"], network.ask).install()
    document = json.loads(json.dumps(receipt.to_json()))
    assert document["num_bytes"] == 256
    assert document["seconds"] == pytest.approx(receipt.pull_s + receipt.install_s)
