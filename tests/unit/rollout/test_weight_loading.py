"""Weights are installed in place, all of them, and mistakes are named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import ShapeError, StaleWeights
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.rollout.weight_loading import load_in_place


class TiedModel(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(3)


def test_tensors_are_copied_into_the_ones_that_are_there() -> None:
    model, other = TiedModel(0), TiedModel(1)
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    load_in_place(whole_shards(model), other.state_dict().items())
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name]
        assert torch.equal(tensor, other.state_dict()[name])
        assert tensor.data_ptr() != other.state_dict()[name].data_ptr()


def test_of_tied_weights_one_name_is_enough() -> None:
    model, other = TiedModel(0), TiedModel(1)
    load_in_place(whole_shards(model), other.named_parameters())
    assert torch.equal(model.head.weight, other.head.weight)
    assert model.head.weight is model.embed.weight


def test_weights_of_another_type_are_converted() -> None:
    model, other = TiedModel(0), TiedModel(1).bfloat16()
    load_in_place(whole_shards(model), other.state_dict().items())
    assert model.embed.weight.dtype == torch.float32
    assert torch.equal(model.embed.weight, other.embed.weight.float())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(StaleWeights, match=r"'norm.weihgt'.*\n.*'norm.weight'"):
        load_in_place(whole_shards(TiedModel(0)), [("norm.weihgt", torch.zeros(3))])


def test_missing_names_are_listed() -> None:
    weights = {"embed.weight": torch.zeros(5, 3)}
    with pytest.raises(StaleWeights, match=r"lack 2 of 3 tensors: norm\.weight, norm\.bias"):
        load_in_place(whole_shards(TiedModel(0)), weights.items())


def test_another_shape_is_refused_by_name() -> None:
    with pytest.raises(ShapeError, match=r"embed\.weight has shape \(4, 3\)"):
        load_in_place(whole_shards(TiedModel(0)), [("embed.weight", torch.zeros(4, 3))])
