"""Answers begin where others have ended; a loop over single steps says the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from flexrlhf.planning.costs.continuous import ends, stretches


def step_s(rows: float, generated: float) -> float:
    return 1.0 + 0.1 * rows + 0.01 * rows * generated


def step_by_step(responses: Sequence[int], at_once: int) -> list[tuple[float, int]]:
    """(seconds, number) of each end: every round draws a token per row, then steps what goes on."""
    waiting = list(enumerate(responses))
    rows: list[list[int]] = []
    ended, now_s = [], 0.0
    while waiting or rows:
        while waiting and len(rows) < at_once:
            number, length = waiting.pop(0)
            rows.append([number, length, 0])
            now_s += 0.5
        for row in rows:
            row[2] += 1
        ended += sorted((now_s, number) for number, length, drawn in rows if drawn == length)
        rows = [row for row in rows if row[2] < row[1]]
        if rows:
            now_s += step_s(len(rows), sum(row[2] for row in rows) / len(rows))
    return ended


def test_who_runs_with_whom() -> None:
    found = [(s.steps, s.rows, list(s.begun), s.ended) for s in stretches([3, 1, 2, 2], 2)]
    assert found == [
        (1, 2, [0, 1], (1,)),
        (2, 2, [2], (0, 2)),
        (2, 1, [3], (3,)),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 5, 40])
def test_ends_are_those_of_single_steps(at_once: int) -> None:
    chance = random.Random(at_once)
    responses = [chance.randint(1, 12) for _ in range(30)]
    found = ends(responses, at_once, step_s, lambda begun: 0.5 * len(begun))
    expected = step_by_step(responses, at_once)
    assert list(found.order) == [number for _, number in expected]
    # Rows of one stretch have begun at different times; their mean stands for each.
    assert found.seconds == pytest.approx([seconds for seconds, _ in expected], rel=0.02)


def test_a_wave_of_equal_answers_is_exact() -> None:
    found = ends([4] * 3, 3, step_s, lambda begun: 0.5 * len(begun))
    assert found.seconds == pytest.approx([1.5 + sum(step_s(3, n) for n in (1, 2, 3))] * 3)


def test_parts_add_up_to_the_whole() -> None:
    found = ends([5, 1, 3, 2], 2, step_s, lambda _: 0.0)
    parts = found.parts_s([1, 2, 1])
    assert sum(parts) == pytest.approx(found.last_s)
    assert parts[0] == pytest.approx(found.seconds[0])
    assert found.parts_s([0, 4]) == [0.0, pytest.approx(found.last_s)]


def test_nothing_to_answer_takes_no_time() -> None:
    assert ends([], 4, step_s, lambda _: 1.0).last_s == 0.0
