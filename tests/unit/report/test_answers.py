from __future__ import annotations

import json

from flexrlhf.report.answers import pair_answers, read_answers


def answers(tmp_path, rows):
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_answers(tmp_path / "samples.jsonl", [])


def responses(pairs):
    return [(pair.first.response, pair.last.response) for pair in pairs]


def test_same_prompts_of_first_and_last_iteration_are_paired(runs, tmp_path):
    rows = [
        runs.sample(1, "a", "a1"),
        runs.sample(1, "b", "b1"),
        runs.sample(5, "a", "a5"),
        runs.sample(9, "b", "b9"),
        runs.sample(9, "a", "a9"),
    ]
    pairs = pair_answers(answers(tmp_path, rows), "train")
    assert responses(pairs) == [("a1", "a9"), ("b1", "b9")]
    assert all(pair.has_same_prompt for pair in pairs)


def test_every_prompt_comes_before_the_second_answer_to_one(runs, tmp_path):
    rows = [
        runs.sample(iteration, prompt, f"{prompt}{iteration}{place}")
        for iteration in (1, 2)
        for prompt in "ab"
        for place in "xy"
    ]
    pairs = pair_answers(answers(tmp_path, rows), "train", limit=3)
    assert responses(pairs) == [("a1x", "a2x"), ("b1x", "b2x"), ("a1y", "a2y")]


def test_a_prompt_without_partner_takes_the_most_similar_one(runs, tmp_path):
    rows = [
        runs.sample(1, "add 2 and 3", "first"),
        runs.sample(2, "name a city", "far"),
        runs.sample(2, "add 7 and 3", "near"),
    ]
    (pair,) = pair_answers(answers(tmp_path, rows), "train")
    assert pair.last.response == "near"
    assert not pair.has_same_prompt


def test_kinds_are_kept_apart(runs, tmp_path):
    rows = [
        runs.sample(0, "a", "start", kind="evaluation"),
        runs.sample(1, "a", "trained"),
        runs.sample(2, "a", "end", kind="evaluation"),
    ]
    found = answers(tmp_path, rows)
    assert responses(pair_answers(found, "evaluation")) == [("start", "end")]
    assert pair_answers(found, "train") == []


def test_a_reward_that_is_not_a_number_is_none(runs, tmp_path):
    rows = [
        runs.sample(1, "a", "x", reward=float("nan"), reward_parts={"f": None, "g": 1}),
        runs.sample(1, "a", "y", reward=None, reward_parts=None),
    ]
    first, second = answers(tmp_path, rows)
    assert first.reward is None
    assert second.reward is None
    assert first.reward_parts == {"g": 1.0}


def test_a_line_that_is_no_sample_is_left_out_and_said(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"iteration": 1, "prompt": "a"}\n')
    notes: list[str] = []
    assert read_answers(path, notes) == ()
    assert notes == ["samples.jsonl: a line that is not a sample was left out."]
