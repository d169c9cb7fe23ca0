"""Prompts in a file: lines of text, or rows with a column of prompts."""

from __future__ import annotations

import pytest

from flexrlhf.core.errors import ConfigError, DataError
from flexrlhf.runtime.prompt_file import read_prompts

ASKED = [{"role": "user", "content": "red?"}]


def test_a_text_file_has_a_prompt_in_each_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("red green\n\n  \nblau – ü 😀\n", encoding="utf-8")
    assert read_prompts(file) == ["red green", "blau – ü 😀"]


def test_rows_may_hold_texts_and_conversations(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "red"}\n{"prompt": [{"role": "user", "content": "red?"}]}\n')
    assert read_prompts(file) == ["red", ASKED]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("prompts.txt", b"th\xe9", "byte 2 is not UTF-8"),
        ("prompts.txt", b"", "is empty"),
        ("prompts.txt", b"\n \n", "is empty"),
        ("prompts.jsonl", b"", "has no rows"),
        ("prompts.jsonl", b'{"prompt": "red"}\n{"prompt":', "line 2 is broken"),
        (
            "prompts.jsonl",
            b'{"prompt": "red"}\n{"prompts": "green"}',
            "row 1 has no column 'prompt'",
        ),
        ("prompts.jsonl", b"5\n", "line 1 holds 5"),
        ("prompts.jsonl", b"[" * 100_000, "line 1 is broken"),
    ],
)
def test_what_holds_no_prompts_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_prompts(tmp_path / name)
    assert said in caught.value.wrong
    assert all((caught.value.right, caught.value.do))


@pytest.mark.parametrize("name", ["", "nowhere.txt", "nowhere.jsonl"])
def test_a_missing_file_is_said(tmp_path, name):
    with pytest.raises(ConfigError) as caught:
        read_prompts(tmp_path / name)
    assert all((caught.value.right, caught.value.do))
