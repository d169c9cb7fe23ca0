"""Batches of every kind of data set, and the counts that losses are divided by."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexrlhf.learning.data.collation import (
    COLLATE,
    collate_pairs,
    collate_supervised,
    item_tokens,
    num_micro_batches,
    num_sequences,
    num_tokens,
    num_trainable_tokens,
)
from flexrlhf.learning.data.experience import Prompt, Sample, pack_by_tokens
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.data.supervised import SupervisedExample

EXAMPLES = [
    SupervisedExample(7, (3, 4, 5, 6), (False, False, True, True)),
    SupervisedExample(2, (8, 9), (False, True)),
]
PAIRS = [
    PreferencePair(4, (1, 2, 3), (1, 5), 1),
    PreferencePair(9, (6, 7), (6, 8, 9, 10), 0),
]


def answer(num_prompt: int, num_response: int) -> Sample:
    length = num_prompt + num_response
    return Sample(
        sample_id=5,
        prompt=Prompt(0, tuple(range(num_prompt)), ""),
        tokens=torch.arange(length),
        num_prompt_tokens=num_prompt,
        mask=torch.arange(length) >= num_prompt,
        fields={"values": torch.arange(length) * 0.5},
    )


def test_supervised_examples_are_padded_on_the_right():
    batch = collate_supervised(EXAMPLES)
    assert batch.tokens.tolist() == [[3, 4, 5, 6], [8, 9, 0, 0]]
    assert batch.lengths.tolist() == [4, 2]
    assert batch.mask.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert batch.sample_ids == (7, 2)


def test_pairs_alternate_chosen_and_rejected():
    batch = collate_pairs(PAIRS)
    assert batch.tokens.tolist() == [[1, 2, 3, 0], [1, 5, 0, 0], [6, 7, 0, 0], [6, 8, 9, 10]]
    assert batch.lengths.tolist() == [3, 2, 2, 4]
    assert batch.sample_ids == (4, 4, 9, 9)


def test_samples_carry_the_fields_that_are_asked_for():
    batch = COLLATE["prompts"]([answer(1, 1), answer(2, 2)], ("values",))
    assert batch.fields["values"].tolist() == [[0.0, 0.5, 0.0, 0.0], [0.0, 0.5, 1.0, 1.5]]
    assert COLLATE["prompts"]([answer(1, 1)], ()).fields == {}


def test_every_kind_of_data_has_a_batch():
    batches = [
        COLLATE[kind](items, ())
        for kind, items in (
            ("prompts", [answer(2, 2)]),
            ("supervised", EXAMPLES),
            ("preferences", PAIRS),
        )
    ]
    assert all(batch.tokens.dtype == torch.int64 for batch in batches)
    assert all(batch.mask.dtype == torch.bool for batch in batches)


@pytest.mark.parametrize(
    ("item", "padded", "plain", "rows", "trainable"),
    [
        (answer(3, 4), 7, 7, 1, 4),
        (EXAMPLES[0], 4, 4, 1, 2),
        (PAIRS[0], 6, 5, 2, 3),  # the shorter answer is padded to the longer one
        (PAIRS[1], 8, 6, 2, 4),
    ],
)
def test_counts_of_an_item(item, padded: int, plain: int, rows: int, trainable: int):
    assert item_tokens(item) == padded
    assert num_tokens(item) == plain
    assert num_sequences(item) == rows
    assert num_trainable_tokens(item) == trainable


def test_trainable_tokens_are_those_of_the_batch():
    """Entry 0 is never trained, since nothing predicts it; the count must say so too."""
    example = SupervisedExample(0, (3, 4, 5), (True, True, True))
    assert num_trainable_tokens(example) == int(collate_supervised([example]).mask.sum()) == 2


@pytest.mark.parametrize(
    ("num_items", "longest", "max_tokens", "expected"),
    [(8, 10, 20, 4), (8, 10, 29, 4), (8, 10, 30, 3), (1, 10, 10, 1), (5, 10, 1000, 1)],
)
def test_the_number_of_micro_batches(num_items, longest, max_tokens, expected):
    assert num_micro_batches(num_items, longest=longest, max_tokens=max_tokens) == expected


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    slack=st.integers(0, 200),
)
def test_no_packing_needs_more_micro_batches_than_foreseen(lengths: list[int], slack: int):
    longest = max(lengths)
    bins = pack_by_tokens(lengths, max_tokens=longest + slack)
    limit = num_micro_batches(len(lengths), longest=longest, max_tokens=longest + slack)
    assert len(bins) <= limit


@given(
    pairs=st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 12)).map(
            lambda lengths: PreferencePair(0, *((0,) * length for length in lengths), 0)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_bin_of_pairs_is_within_its_budget_when_padded(pairs: list[PreferencePair]):
    for positions in pack_by_tokens([item_tokens(pair) for pair in pairs], max_tokens=50):
        assert collate_pairs([pairs[p] for p in positions]).tokens.numel() <= 50
