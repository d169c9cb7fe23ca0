"""Requests are checked, and cut so that a group's prompt is read once."""

from __future__ import annotations

import re

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.rollout.protocol import Request
from flexrlhf.learning.rollout.waves import WaitingRequests, Wave, check_requests

GROUPS = [Request((5,), (0, 1, 2)), Request((6, 7), (3, 4, 5)), Request((8,), (6, 7))]


def waves(requests: list[Request], size: int, *, keeps_groups: bool = True) -> list[Wave]:
    waiting = WaitingRequests(requests)
    taken = []
    while waiting:
        taken.append(waiting.take(size, keeps_groups=keeps_groups))
    return taken


def test_one_wave_holds_everything_that_fits() -> None:
    (wave,) = waves(GROUPS, 8)
    assert wave.prompts == ((5,), (6, 7), (8,))
    assert wave.prompt_of_answer == (0, 0, 0, 1, 1, 1, 2, 2)
    assert wave.sample_ids == tuple(range(8))
    assert wave.prompt_lengths == [1, 1, 1, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("max_sequences", "expected"),
    [
        (7, [(0, 1, 2, 3, 4, 5), (6, 7)]),
        (5, [(0, 1, 2), (3, 4, 5, 6, 7)]),
        (2, [(0, 1), (2,), (3, 4), (5,), (6, 7)]),
    ],
)
def test_groups_stay_together_unless_larger_than_a_wave(
    max_sequences: int, expected: list[tuple[int, ...]]
) -> None:
    assert [wave.sample_ids for wave in waves(GROUPS, max_sequences)] == expected


def test_room_is_filled_where_groups_may_be_cut() -> None:
    taken = waves(GROUPS, 4, keeps_groups=False)
    assert [wave.sample_ids for wave in taken] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [wave.is_cut for wave in taken] == [True, False]
    assert taken[1].prompts == ((6, 7), (8,))
    exact = waves(GROUPS, 3, keeps_groups=False)
    assert [wave.is_cut for wave in exact] == [False, False, False]


def test_equal_prompts_are_read_once() -> None:
    (wave,) = waves([Request((4,), (0,)), Request((9,), (1,)), Request((4,), (2,))], 8)
    assert wave.prompts == ((4,), (9,))
    assert wave.prompt_of_answer == (0, 1, 0)


def test_nothing_asked_is_no_wave() -> None:
    assert list(waves([], 8)) == []
    assert list(waves([Request((1,), ())], 8)) == []


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([Request((), (0,))], "is empty"),
        ([Request((3, 10), (0,))], "has token 10, but the actor knows 10 tokens"),
        ([Request((-1,), (0,))], "has token -1"),
        ([Request((1, 2, 3), (0,))], "3 tokens and 6 new ones exceed the actor's 8 positions"),
        ([Request((1,), (0, 1)), Request((2,), (1,))], "Sample id 1 is negative or occurs twice"),
        ([Request((1,), (-4,))], "Sample id -4"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(
    requests: list[Request], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        check_requests(requests, max_new_tokens=6, vocabulary_size=10, max_positions=8)


def test_a_model_without_a_position_limit_takes_any_length() -> None:
    check_requests(
        [Request((1,) * 99, (0,))], max_new_tokens=99, vocabulary_size=10, max_positions=None
    )
