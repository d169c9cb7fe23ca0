from __future__ import annotations

import math

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.rewards.combination import combine


def test_total_is_the_weighted_sum_of_what_applies():
    totals, breakdown = combine(
        {"model": (2.0, [0.5, -1.0]), "length": (0.25, [4.0, math.nan]), "off": (0.0, [9.0, 9.0])}
    )
    assert totals == [2.0, -2.0]  # 2 * 0.5 + 0.25 * 4 and 2 * -1
    assert breakdown == [
        {"model": 0.5, "length": 4.0, "off": 9.0},
        {"model": -1.0, "off": 9.0},
    ]


def test_order_of_parts_does_not_change_the_total():
    parts = {"a": (1.0, [1e16]), "b": (1.0, [1.0]), "c": (-1.0, [1e16])}
    backwards = dict(reversed(parts.items()))
    assert combine(parts)[0] == combine(backwards)[0] == [1.0]


def test_answer_without_any_reward_is_refused():
    with pytest.raises(DataError, match="applies to answer 1 of the batch: a, b"):
        combine({"a": (1.0, [1.0, math.nan]), "b": (1.0, [math.nan, math.nan])})


def test_no_parts_are_refused():
    with pytest.raises(DataError, match="no reward"):
        combine({})


@pytest.mark.parametrize("parts", [{"a": (1e9, [1.0, 1e10])}, {"a": (1e308, [0.0, -1e308])}])
def test_rewards_that_float32_cannot_train_on_are_refused(parts):
    with pytest.raises(DataError, match=r"answer 1 of the batch is out of range: .* by a"):
        combine(parts)
