"""Who has which part of which weight: metadata only, never a byte of a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_bytes import DTYPES, dtype_name


@dataclass(frozen=True, slots=True)
class Offer:
    """The part of one weight that one source has."""

    source: str
    weight: str
    """First name of the weight at the source; tied names share it."""
    box: Box
    shape: tuple[int, ...]
    dtype: torch.dtype


Offers = Mapping[str, list[Offer]]
"""Offers by each name that the weight has, sources in the order in which they were named."""


def to_json(shards: Mapping[str, Shard]) -> dict[str, Any]:
    """Returns what a process says of the weights that it has."""
    return {
        name: {
            "start": list(shard.box.start),
            "stop": list(shard.box.stop),
            "shape": list(shard.shape),
            "dtype": dtype_name(shard.tensor.dtype),
            "tied": list(shard.tied),
        }
        for name, shard in shards.items()
    }


def offers_of(source: str, weights: Mapping[str, Any]) -> dict[str, list[Offer]]:
    """Reads what `to_json` gave."""
    offers: dict[str, list[Offer]] = {}
    for name, entry in weights.items():
        box = Box(tuple(entry["start"]), tuple(entry["stop"]))
        offer = Offer(source, name, box, tuple(entry["shape"]), DTYPES[entry["dtype"]])
        for each in (name, *entry["tied"]):
            offers[each] = [offer]
    return offers


def merged(several: Iterable[Offers]) -> dict[str, list[Offer]]:
    """Returns the offers of several sources together."""
    together: dict[str, list[Offer]] = {}
    for offers in several:
        for name, rows in offers.items():
            together.setdefault(name, []).extend(rows)
    return together


def tied_once(shards: Mapping[str, Shard]) -> dict[str, Shard]:
    """Returns each tensor once, under its first name, with all of its other names."""
    first_names: dict[object, str] = {}
    once: dict[str, Shard] = {}
    for name, shard in shards.items():
        first = first_names.setdefault(_identity(name, shard), name)
        known = once.get(first)
        names = (*known.tied, name, *shard.tied) if known else shard.tied
        tied = tuple(dict.fromkeys(each for each in names if each != first))
        once[first] = Shard(shard.box, shard.shape, shard.tensor, tied)
    return once


def _identity(name: str, shard: Shard) -> object:
    """Returns what two names have in common when they mean the same memory in the same way."""
    tensor = shard.tensor
    if tensor.numel() == 0:
        return name
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), shard.box)
