"""What prompt lookup proposes, against a search through the whole text."""

from __future__ import annotations

import random

import pytest

from flexrlhf.learning.rollout.speculation.prompt_lookup import PromptLookup
from flexrlhf.learning.rollout.waves import Wave


def lookup(prompt: tuple[int, ...], *answers: list[int]) -> PromptLookup:
    """The proposals for answers to one prompt, drawn token by token."""
    drafter = PromptLookup()
    drafter.begin(Wave((prompt,), (0,) * len(answers), tuple(range(len(answers)))))
    for place in range(max(map(len, answers))):
        drafter.append([answer[place : place + 1] for answer in answers])
    return drafter


def searched(text: list[int], most: int) -> list[int]:
    """The same by comparing every place of the text with its end, the latest first."""
    for size in (3, 2):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                period = len(text) - end
                return [text[end + place % period] for place in range(most)]
    return []


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert lookup((1, 2, 3, 4, 5, 6), [9, 2, 3]).propose([3]) == [[4, 5, 6]]
    assert lookup((1, 2, 3, 4), [9, 7, 3]).propose([3]) == [[]]


def test_the_latest_place_counts_and_three_tokens_before_two() -> None:
    assert lookup((2, 3, 4, 2, 3, 5), [9, 2, 3]).propose([1]) == [[5]]
    assert lookup((1, 2, 3, 4, 7, 2, 3, 5), [1, 2, 3]).propose([1]) == [[4]]


def test_a_text_that_repeats_itself_is_proposed_to_go_on() -> None:
    assert lookup((9,), [1, 2, 1, 2]).propose([5]) == [[1, 2, 1, 2, 1]]


@pytest.mark.parametrize("seed", range(5))
def test_every_proposal_is_that_of_a_search_through_the_text(seed: int) -> None:
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(4) for _ in range(draw.randrange(1, 30)))
    answers = [[draw.randrange(4) for _ in range(40)] for _ in range(3)]
    for length in range(1, 40):
        drafter = lookup(prompt, *(answer[:length] for answer in answers))
        expected = [searched([*prompt, *answer[:length]], 6) for answer in answers]
        assert drafter.propose([6, 6, 6]) == expected


def test_rows_are_kept_and_others_begin_behind_them() -> None:
    drafter = lookup((1, 2, 3), [1, 2], [2, 3], [7, 7])
    drafter.keep([2, 0])
    drafter.begin(Wave(((5, 6, 5),), (0,), (9,)))
    drafter.append([[], [], [6]])
    assert drafter.propose([1, 1, 1]) == [[], [3], [5]]
