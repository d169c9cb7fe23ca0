from __future__ import annotations

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import ShapeError
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard, whole_shards


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(3), persistent=False)


def test_every_weight_comes_once_and_is_the_live_one():
    module = Tied()
    shards = whole_shards(module)
    assert list(shards) == [
        "embedding.weight",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert shards["embedding.weight"].tied == ("head.weight",)
    assert shards["norm.num_batches_tracked"].box == Box((), ())
    shards["norm.weight"].tensor.fill_(3.0)
    assert (module.norm.weight == 3.0).all()


def test_a_part_is_as_large_as_its_tensor_and_inside_the_weight():
    with pytest.raises(ShapeError, match="stands for the part"):
        Shard(Box((0, 0), (2, 4)), (8, 4), torch.zeros(3, 4))
    with pytest.raises(ShapeError, match="inside the weight"):
        Shard(Box((6, 0), (9, 4)), (8, 4), torch.zeros(3, 4))
