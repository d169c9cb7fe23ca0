"""Training items of every kind of data set as padded batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from flexrlhf.core.algorithm_specs import DataKind
from flexrlhf.learning.data.experience import Batch, Sample, collate, collate_sequences
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.data.supervised import SupervisedExample

Item = Sample | SupervisedExample | PreferencePair
"""What a mini-batch is cut from."""


def collate_supervised(examples: Sequence[SupervisedExample], fields: Sequence[str] = ()) -> Batch:
    """Pads examples into one batch; `fields` must be empty, examples carry none."""
    assert not fields
    return collate_sequences(
        [torch.tensor(example.tokens) for example in examples],
        [torch.tensor(example.mask) for example in examples],
        sample_ids=[example.index for example in examples],
    )


def collate_pairs(pairs: Sequence[PreferencePair], fields: Sequence[str] = ()) -> Batch:
    """Pads pairs into one batch whose rows alternate chosen, rejected."""
    return collate([answer for pair in pairs for answer in pair.answers], fields)


COLLATE: Final[Mapping[DataKind, Callable[[Sequence[Any], Sequence[str]], Batch]]] = {
    "prompts": collate,
    "supervised": collate_supervised,
    "preferences": collate_pairs,
}
"""How the items of each data kind become a batch."""


def item_tokens(item: Item) -> int:
    """Returns the tokens that an item takes in a batch, padding inside a pair included."""
    if isinstance(item, PreferencePair):
        return 2 * max(item.num_tokens)
    return len(item.tokens)


def num_tokens(item: Item) -> int:
    """Returns the tokens of an item, padding left out."""
    if isinstance(item, PreferencePair):
        return sum(item.num_tokens)
    return len(item.tokens)


def num_sequences(item: Item) -> int:
    """Returns the rows that an item takes in a batch."""
    return 2 if isinstance(item, PreferencePair) else 1


def num_trainable_tokens(item: Item) -> int:
    """Returns the tokens of an item that a token-level loss counts."""
    if isinstance(item, PreferencePair):
        return item.num_answer_tokens
    return int(torch.as_tensor(item.mask)[1:].sum())


def num_micro_batches(num_items: int, *, longest: int, max_tokens: int) -> int:
    """Returns how many bins of `max_tokens` hold that many items of at most `longest` tokens."""
    return math.ceil(num_items / max(1, max_tokens // longest))
