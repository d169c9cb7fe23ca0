"""Rows that cannot be read or trained on are named with their file."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"", "has no rows"),
        (b" \n\n", "has no rows"),
        (b'{"prompt": "say"}\n{"prompt": \n', "line 2 is broken"),
        (b'{"prompt": "th\xe9"}\n', "line 1 is broken: 'utf-8' codec"),
        (bytes(range(256)), "line 1 is broken"),
        (b'{"prompt": "say \\ud800"}\n', "line 1 is broken: 'utf-8' codec"),
        (b'{"prompt": "say", "n": ' + b"1" * 5000 + b"}\n", "line 1 is broken: Exceeds"),
        (b'{"prompt": ' + b"[" * 100_000 + b"\n", "line 1 is broken: maximum recursion"),
        (b'["say"]\n', "line 1 holds ['say']"),
        (b'{"question": "say"}\n', "no column 'prompt'"),
        (b'{"prompt": "say"}\n{"question": "x"}\n', "rows count from 0: Row 1:"),
        (b'{"prompt": 5}\n', "Row 0: column 'prompt' holds '5'"),
        (b'{"prompt": ""}\n', "Row 0: the prompt '' has no tokens"),
        (b'{"prompt": "say"}\n{"prompt": " \\t\\u3000 "}\n', "Row 1: the prompt"),
        (b'{"prompt": "say ' + b"the " * 100_000 + b'"}\n', "Row 0 has 100001 tokens"),
        (b'{"prompt": [{"role": "user", "content": "say"}]}\n', "no chat template"),
        (b'{"prompt": [{"role": "user", "content": null}]}\n', "without role or content"),
    ],
)
@pytest.mark.parametrize("kind", ["prompts", "evaluation"])
def test_wrong_rows_are_named_with_their_file(changed, outcome, tmp_path, kind, rows, said):
    (tmp_path / "rows.jsonl").write_bytes(rows)
    err = outcome(changed("ppo", {f"data.{kind}": {"path": "rows.jsonl"}}), 2)
    assert str(tmp_path / "rows.jsonl") in err
    assert said in err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "say", "chosen": "tea"}, "Row 1: column 'rejected' is missing"),
        ({"chosen": "say tea", "rejected": "say tea"}, "Row 1"),
        ({"prompt": "say", "chosen": "tea", "rejected": "tea"}, "are the same answer"),
        ({"prompt": "say", "chosen": "", "rejected": ""}, "are the same answer"),
        ({"prompt": "say", "chosen": "tea " * 20, "rejected": "tea"}, "data.max_tokens = 12"),
        ({"prompt": 5, "chosen": "tea", "rejected": "cat"}, "column 'prompt' holds '5'"),
    ],
)
@pytest.mark.parametrize("algorithm", ["dpo", "reward_model"])
def test_wrong_pairs_are_named_with_their_file(changed, outcome, tmp_path, algorithm, row, said):
    rows = [{"prompt": "say", "chosen": "good", "rejected": "bad"}, row]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    err = outcome(changed(algorithm, {"data.preferences": {"path": "rows.jsonl"}}), 2)
    assert str(tmp_path / "rows.jsonl") in err
    assert said in err


def test_an_answer_of_a_pair_may_be_empty(changed, outcome, tmp_path):
    """Its end token alone is learnt: nothing to say may be better than something, or worse."""
    rows = [{"prompt": "say", "chosen": "good", "rejected": ""}] * 8
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    outcome(changed("dpo", {"data.preferences": {"path": "rows.jsonl"}}), 0)


def test_odd_rows_are_fine(changed, outcome, tmp_path):
    """Another script, emoji, a zero byte, NaN in a column, a byte-order mark, a very long line."""
    rows = [
        {"prompt": "say 😀 чай\u0000"},
        {"prompt": "say\n\n\tthe\u2028tea", "number": float("nan"), "list": [[{}]]},
        {"prompt": "say", "text": "x" * 1_000_000},
        {"prompt": "the " * 1000},
    ]
    lines = "\ufeff" + "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    content = changed("grpo", {"data.prompts.path": "rows.jsonl", "data.too_long": "drop"})
    assert "1 of 4 rows left out" in outcome(content, 0)
    assert (tmp_path / "run" / "report.html").is_file()
