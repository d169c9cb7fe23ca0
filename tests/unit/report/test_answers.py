from __future__ import annotations

import json

from flexrlhf.report.answers import read_answers


def answers(tmp_path, rows):
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_answers(tmp_path / "samples.jsonl", [])


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
