from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Cuts a tensor at random places of every dimension, empty parts among them."""
    boxes = [Box.whole(shape)]
    for dim, length in enumerate(shape):
        places = draw(st.lists(st.integers(0, length), max_size=2))
        ends = sorted([0, *places, length])
        boxes = [
            Box(
                (*box.start[:dim], low, *box.start[dim + 1 :]),
                (*box.stop[:dim], high, *box.stop[dim + 1 :]),
            )
            for box in boxes
            for low, high in pairwise(ends)
        ]
    return boxes


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return torch.randint(-999, 999, shape, generator=generator).to(dtype)


def part(tensor: Tensor, box: Box) -> Tensor:
    return tensor[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_becomes_any_other_exactly_and_nothing_is_sent_twice(data):
    tensors = {f"w{i}": data.draw(weights()) for i in range(data.draw(st.integers(1, 3)))}
    stores: dict[str, WeightStore] = {}
    asked: list[Box] = []
    for replica in range(data.draw(st.integers(1, 2))):
        parts = {name: data.draw(layouts(tuple(t.shape))) for name, t in tensors.items()}
        for rank in range(max(map(len, parts.values()))):
            store = stores.setdefault(f"{replica}:{rank}", WeightStore())
            store.publish(
                "actor",
                5,
                {
                    name: Shard(box, tuple(tensors[name].shape), part(tensors[name], box).clone())
                    for name, boxes in parts.items()
                    for box in boxes[rank : rank + 1]
                },
            )

    def ask(address, key, query):
        asked.extend(Box(tuple(start), tuple(stop)) for _, start, stop in query.get("pieces", []))
        return stores[address].handle(key, query)

    for name, tensor in tensors.items():
        for box in data.draw(layouts(tuple(tensor.shape)))[:4]:
            asked.clear()
            target = Shard(box, tuple(tensor.shape), torch.zeros(box.shape, dtype=tensor.dtype))
            bucket_bytes = data.draw(st.sampled_from([1, 50, 1 << 20]))
            staged = pull("actor", 5, {name: target}, list(stores), ask, bucket_bytes=bucket_bytes)
            receipt = staged.install()
            assert torch.equal(target.tensor, part(tensor, box))
            assert sum(each.num_elements for each in asked) == box.num_elements
            assert receipt.num_bytes == target.tensor.nbytes
            assert receipt.source_checksum == receipt.installed_checksum
