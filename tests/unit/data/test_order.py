from __future__ import annotations

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.order import SeededOrder


def test_every_epoch_holds_every_row_once():
    order = SeededOrder(7, seed=3)
    for epoch in range(5):
        assert sorted(order.take(7 * epoch, 7)) == list(range(7))


def test_epochs_and_seeds_differ():
    order = SeededOrder(50, seed=3)
    orders = {tuple(order.take(50 * epoch, 50)) for epoch in range(10)}
    assert len(orders) == 10
    assert order.take(0, 50) != SeededOrder(50, seed=4).take(0, 50)


def test_position_is_the_whole_state():
    whole = SeededOrder(5, seed=1).take(0, 23)
    resumed = SeededOrder(5, seed=1)
    assert resumed.take(13, 10) == whole[13:]
    pieces = [row for position in range(0, 23, 4) for row in resumed.take(position, 4)]
    assert pieces[:23] == whole


def philox4x64(counter: int, key: tuple[int, int]) -> list[int]:
    """Four words of Philox4x64-10, after Salmon et al. 2011 (Random123)."""
    mask = 2**64 - 1
    words, (key_0, key_1) = [counter, 0, 0, 0], key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [
            (second >> 64) ^ words[1] ^ key_0,
            second & mask,
            (first >> 64) ^ words[3] ^ key_1,
            first & mask,
        ]
        key_0 = (key_0 + 0x9E3779B97F4A7C15) & mask
        key_1 = (key_1 + 0xBB67AE8584CAA73B) & mask
    return words


def test_order_ranks_the_words_of_philox():
    # Random123's known answer for a zero counter and key.
    assert philox4x64(0, (0, 0))[0] == 0x16554D9ECA36314C
    epoch = 2
    words = [word for counter in (1, 2) for word in philox4x64(counter, (9, epoch))]
    ranked = sorted(range(8), key=lambda row: words[row])
    assert SeededOrder(8, seed=9).take(8 * epoch, 8) == ranked


def test_any_integer_is_a_seed():
    assert SeededOrder(9, seed=-1).take(0, 9) == SeededOrder(9, seed=2**64 - 1).take(0, 9)


def test_rows_are_drawn_evenly():
    first = [SeededOrder(4, seed=seed).take(0, 1)[0] for seed in range(2000)]
    counts = [first.count(row) for row in range(4)]
    assert all(abs(count - 500) < 4 * (2000 * 0.25 * 0.75) ** 0.5 for count in counts)


def test_no_rows_have_no_order():
    with pytest.raises(DataError, match="0 rows"):
        SeededOrder(0, seed=0)
