"""Mini-batches are cut by id alone: every item once per epoch, whatever arrived first."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.data.supervised import SupervisedExample
from flexrlhf.runtime.micro_batch_limit import ItemLimit, TokenLimit
from flexrlhf.runtime.mini_batches import MiniBatch, cut_mini_batch, permutation

TOKENS = TokenLimit(30)
ITEMS = ItemLimit(3)


def answer(sample_id: int, num_response: int) -> Sample:
    length = 2 + num_response
    return Sample(
        sample_id=sample_id,
        prompt=Prompt(0, (0, 0), ""),
        tokens=torch.zeros(length, dtype=torch.int64),
        num_prompt_tokens=2,
        mask=torch.arange(length) >= 2,
    )


@pytest.fixture
def samples() -> list[Sample]:
    rng = random.Random(2)
    return [answer(40 + number, rng.randint(1, 9)) for number in range(12)]


def cut_all(samples, order, num_mini_batches=3, limit=TOKENS) -> list[MiniBatch]:
    return [
        cut_mini_batch(samples, order, index, num_mini_batches, limit=limit, max_answer_tokens=9)
        for index in range(num_mini_batches)
    ]


def ids(mini_batch: MiniBatch) -> list[int]:
    return [item.sample_id for part in mini_batch.replicas[0] for item in part]


def test_a_permutation_holds_every_position_once_and_is_always_the_same():
    order = permutation(12, seed=5, iteration=2, epoch=1)
    assert sorted(order) == list(range(12))
    assert permutation(12, seed=5, iteration=2, epoch=1) == order


def test_epochs_iterations_and_seeds_differ():
    orders = {
        tuple(permutation(12, seed=seed, iteration=iteration, epoch=epoch))
        for seed in (0, 1, 7)
        for iteration in (0, 1, 2, 100)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 3 * 4 * 3


@pytest.mark.parametrize("limit", [TOKENS, ITEMS])
@pytest.mark.parametrize("num_mini_batches", [1, 2, 3, 12])
def test_an_epoch_holds_every_sample_once_in_equal_parts(samples, num_mini_batches, limit):
    order = permutation(12, seed=0, iteration=0, epoch=0)
    parts = cut_all(samples, order, num_mini_batches, limit)
    assert [len(ids(part)) for part in parts] == [12 // num_mini_batches] * num_mini_batches
    assert sorted(i for part in parts for i in ids(part)) == [40 + n for n in range(12)]


def test_which_answer_came_first_does_not_matter(samples):
    """The worker sorts by id; then the same ids meet, in the same micro-batches."""
    order = permutation(12, seed=0, iteration=4, epoch=0)
    expected = [
        [[item.sample_id for item in part] for part in mini_batch.replicas[0]]
        for mini_batch in cut_all(samples, order)
    ]
    arrived = random.Random(9).sample(samples, 12)
    in_order = sorted(arrived, key=lambda sample: sample.sample_id)
    assert expected == [
        [[item.sample_id for item in part] for part in mini_batch.replicas[0]]
        for mini_batch in cut_all(in_order, order)
    ]


def test_the_counts_are_those_of_the_whole_mini_batch(samples):
    order = permutation(12, seed=0, iteration=0, epoch=0)
    for index, mini_batch in enumerate(cut_all(samples, order)):
        chosen = [samples[position] for position in order[4 * index : 4 * index + 4]]
        assert mini_batch.counts.num_sequences == 4
        assert mini_batch.counts.max_tokens == 9
        trainable = sum(sample.num_response_tokens for sample in chosen)
        assert mini_batch.counts.num_tokens == trainable
        batches = [COLLATE["prompts"](part, ()) for part in mini_batch.replicas[0]]
        assert sum(int(batch.mask.sum()) for batch in batches) == trainable
        assert all(batch.tokens.numel() <= 30 for batch in batches)


def test_a_fixed_number_of_items(samples):
    parts = cut_all(samples, list(range(12)), 1, ItemLimit(5))
    assert [len(part) for part in parts[0].replicas[0]] == [5, 5, 2]


def test_a_micro_batch_that_the_packing_did_not_need_is_empty(samples):
    (mini_batch,) = cut_all(samples, list(range(12)), 1, ItemLimit(12))
    assert mini_batch.micro_batch(0) == mini_batch.replicas[0][0]
    assert mini_batch.micro_batch(1) == ()


def test_pairs_count_as_two_rows_and_examples_by_their_masks():
    pairs = [PreferencePair(i, (0,) * 4, (0,) * 5, 1) for i in range(2)]
    mini_batch = cut_mini_batch(pairs, [1, 0], 0, 1, limit=TOKENS, max_answer_tokens=9)
    assert mini_batch.counts.num_sequences == 4
    examples = [SupervisedExample(i, (0,) * 5, (False, False, True, True, True)) for i in range(2)]
    mini_batch = cut_mini_batch(examples, [0, 1], 0, 1, limit=TOKENS, max_answer_tokens=9)
    assert (mini_batch.counts.num_sequences, mini_batch.counts.num_tokens) == (2, 6)


def test_a_sequence_longer_than_the_budget():
    with pytest.raises(DataError, match="A sequence of 31 tokens exceeds the micro-batch of 30"):
        TOKENS.cut([4, 31])


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=80),
    slack=st.integers(0, 300),
    longer=st.integers(0, 20),
)
def test_the_bound_is_never_exceeded_by_a_token_budget(lengths, slack, longer):
    """The graph is drawn with the bound before any length is known."""
    longest = max(lengths) + longer
    limit = TokenLimit(longest + slack)
    bins = limit.cut(lengths)
    assert len(bins) <= limit.bound(len(lengths), longest)
    assert sorted(index for positions in bins for index in positions) == list(range(len(lengths)))


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=80), max_items=st.integers(1, 90))
def test_the_bound_of_a_number_of_items_is_exact(lengths, max_items):
    limit = ItemLimit(max_items)
    bins = limit.cut(lengths)
    assert len(bins) == limit.bound(len(lengths), longest=50)
    assert max(len(positions) for positions in bins) <= max_items
