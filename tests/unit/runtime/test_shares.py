"""Work divided between replicas, equally and by speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexrlhf.runtime.shares import balanced_shares, rooms

LENGTHS = st.lists(st.integers(1, 50), max_size=20)
SPEEDS = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5)


def tokens(lengths: list[int], share: list[int]) -> int:
    return sum(lengths[index] for index in share)


def test_the_longest_goes_first_to_the_share_with_the_fewest_tokens():
    # 9 to A, 7 to B, 6 to B (13), 5 to A (14), 4 to B (17, full), 3 to A (17)
    assert balanced_shares([3, 9, 4, 7, 5, 6], 2) == [[0, 1, 4], [2, 3, 5]]


def test_items_of_one_length_are_dealt_in_turn():
    assert balanced_shares([1] * 7, 3) == [[0, 3, 6], [1, 4], [2, 5]]


def test_equal_speeds_are_no_speeds():
    lengths = [3, 9, 4, 7, 5, 6, 1]
    assert balanced_shares(lengths, 3, (0.5,) * 3) == balanced_shares(lengths, 3)


def test_a_share_four_times_as_fast_gets_four_times_the_tokens():
    lengths = [5] * 20
    fast, slow = balanced_shares(lengths, 2, (1.0, 0.25))
    assert (len(fast), len(slow)) == (16, 4)


def test_a_long_item_goes_where_it_is_done_first():
    # The fast share has done 10 tokens by the time that the slow one has done 2.
    assert balanced_shares([8, 2], 2, (1.0, 0.2)) == [[0, 1], []]


def test_rooms_are_the_parts_rounded_up():
    assert rooms(7, (1.0, 1.0)) == [4, 4]
    assert rooms(6, (1.0, 1.0, 1.0)) == [2, 2, 2]
    assert rooms(10, (1.0, 0.25)) == [8, 2]


@given(lengths=LENGTHS, speeds=SPEEDS)
def test_each_item_is_in_one_share_that_has_room(lengths, speeds):
    shares = balanced_shares(lengths, len(speeds), speeds)
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    for share, room in zip(shares, rooms(len(lengths), speeds), strict=True):
        assert len(share) <= room


@pytest.mark.parametrize("speed", [0.5, 0.25, 0.1])
def test_shares_end_together_but_for_one_item(speed):
    lengths = [7, 3, 9, 1, 4, 8, 6, 2, 5, 10] * 10
    fast, slow = balanced_shares(lengths, 2, (1.0, speed))
    assert abs(tokens(lengths, fast) - tokens(lengths, slow) / speed) <= 10 / speed + 10
