from __future__ import annotations

from flexrlhf.report.answers import Answer
from flexrlhf.report.comparison import compare_answers


def answer(iteration, prompt, response, kind="train"):
    return Answer(iteration, kind, prompt, response, 1.0, {}, True, 3)


def responses(comparisons):
    return [
        ([answer.response for answer in c.first], [answer.response for answer in c.last])
        for c in comparisons
    ]


def test_same_prompts_of_first_and_last_iteration_stand_side_by_side():
    found = compare_answers(
        [
            answer(1, "a", "a1"),
            answer(1, "b", "b1"),
            answer(5, "a", "a5"),
            answer(9, "b", "b9"),
            answer(9, "a", "a9"),
        ],
        "train",
    )
    assert responses(found) == [(["a1"], ["a9"]), (["b1"], ["b9"])]
    assert all(comparison.has_same_prompt for comparison in found)


def test_a_group_of_answers_stays_together_and_is_cut():
    rows = [answer(i, prompt, f"{prompt}{i}{n}") for i in (1, 2) for prompt in "ab" for n in "xyz"]
    found = compare_answers(rows, "train", num_prompts=1, num_answers=2)
    assert responses(found) == [(["a1x", "a1y"], ["a2x", "a2y"])]


def test_a_prompt_without_partner_takes_the_most_similar_one():
    rows = [
        answer(1, "add 2 and 3", "first"),
        answer(1, "same", "second"),
        answer(2, "name a city", "far"),
        answer(2, "same", "again"),
        answer(2, "add 7 and 3", "near"),
    ]
    same, like = compare_answers(rows, "train")
    assert responses([same, like]) == [(["second"], ["again"]), (["first"], ["near"])]
    assert same.has_same_prompt
    assert not like.has_same_prompt


def test_prompts_that_find_no_partner_are_left_out():
    rows = [answer(1, "a", "x"), answer(1, "b", "y"), answer(2, "c", "z")]
    assert responses(compare_answers(rows, "train")) == [(["x"], ["z"])]


def test_kinds_are_kept_apart():
    rows = [
        answer(0, "a", "start", "evaluation"),
        answer(1, "a", "trained"),
        answer(2, "a", "end", "evaluation"),
    ]
    assert responses(compare_answers(rows, "evaluation")) == [(["start"], ["end"])]
    assert compare_answers(rows, "train") == []
