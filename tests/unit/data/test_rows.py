from __future__ import annotations

import json
import os

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.rows import load_rows

ROWS = [{"prompt": "two", "answer": 2}, {"prompt": "drei – three", "answer": 3}]
NESTED = [{"prompt": [{"role": "user", "content": "two"}], "reward_model": {"ground_truth": "2"}}]


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_json_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\ufeff" + json_lines(ROWS) + "\n", encoding="utf-8")
    assert load_rows(path) == ROWS
    assert load_rows(str(path), size=1) == ROWS[:1]


@pytest.mark.parametrize("write", [json.dumps, json_lines])
def test_json_holds_a_list_or_one_object_a_line(tmp_path, write):
    path = tmp_path / "rows.json"
    path.write_text(write(ROWS), encoding="utf-8")
    assert load_rows(path) == ROWS


def test_tables(tmp_path):
    parquet.write_table(pa.Table.from_pylist(NESTED), tmp_path / "rows.parquet")
    assert load_rows(tmp_path / "rows.parquet") == NESTED
    (tmp_path / "rows.csv").write_text("prompt,answer\ntwo,2\ndrei – three,3\n", encoding="utf-8")
    assert load_rows(tmp_path / "rows.csv") == ROWS


def test_saved_dataset(tmp_path):
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(tmp_path / "one")
    assert load_rows(tmp_path / "one") == ROWS
    assert load_rows(next((tmp_path / "one").glob("*.arrow"))) == ROWS
    parts = datasets.DatasetDict(train=saved, test=saved.select([1]))
    parts.save_to_disk(tmp_path / "parts")
    assert load_rows(tmp_path / "parts") == ROWS
    datasets.DatasetDict(dev=saved).save_to_disk(tmp_path / "single")
    assert load_rows(tmp_path / "single") == ROWS
    datasets.DatasetDict(dev=saved, test=saved).save_to_disk(tmp_path / "others")
    with pytest.raises(DataError, match=r"no split 'train'\.\n  It has dev, test"):
        load_rows(tmp_path / "others")


def test_folder_of_files(tmp_path):
    (tmp_path / "b.jsonl").write_text(json_lines(ROWS[1:]), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(json_lines(ROWS[:1]), encoding="utf-8")
    (tmp_path / "README.md").write_text("no rows")
    assert load_rows(tmp_path) == ROWS


def test_a_folder_is_read_without_waiting_for_what_is_no_file(tmp_path):
    (tmp_path / "b.jsonl").write_text(json_lines(ROWS), encoding="utf-8")
    (tmp_path / "a.jsonl").mkdir()
    os.mkfifo(tmp_path / "c.jsonl")
    assert load_rows(tmp_path) == ROWS


def test_folder_with_splits_trains_on_the_training_part(tmp_path):
    (tmp_path / "train-00000-of-00001.jsonl").write_text(json_lines(ROWS[:1]))
    (tmp_path / "test-00000-of-00001.jsonl").write_text(json_lines(ROWS[1:]), encoding="utf-8")
    assert load_rows(tmp_path) == ROWS[:1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "two" "answer": 2}', "line 3 is broken: Expecting ',' delimiter at column 18"),
        ('{"prompt": "two', "line 3 is broken: Unterminated string"),
        ("two", "line 3 is broken: Expecting value at column 1"),
        ("[1, 2]", "line 3 holds [1, 2], which names no columns"),
        (f'{{"prompt": "two", "answer": {"1" * 5000}}}', "line 3 is broken: Exceeds the limit"),
        (f'{{"prompt": {"[" * 100_000}', "line 3 is broken: maximum recursion depth"),
        (r'{"prompt": "\ud800"}', "line 3 is broken: 'utf-8' codec can't encode character"),
    ],
)
def test_broken_line_is_named(tmp_path, line, words):
    path = tmp_path / "rows.jsonl"
    path.write_text(json_lines(ROWS) + line + "\n" + json_lines(ROWS), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_rows(path)
    assert caught.value.wrong.startswith(f"{path}, {words}")
    assert caught.value.right
    assert caught.value.do


def test_wrong_encoding_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"prompt": "drü"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="line 1 is broken: 'utf-8' codec can't decode"):
        load_rows(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", b"\n\n", "has no rows"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.json", b"[{]", "is broken: Expecting property name"),
        ("rows.json", b"[2]", "item 0 holds 2, which names no columns"),
        ("rows.json", b"[" * 100_000, "is broken: maximum recursion depth"),
        ("rows.json", b"[" + b"1" * 5000 + b"]", "is broken: Exceeds the limit"),
        ("rows.parquet", b"PAR", "cannot be read"),
        ("rows.csv", b"prompt,answer\ntwo,2,3\n", "cannot be read"),
        ("rows.txt", b"two", "extension '.txt'"),
        ("rows", b"two", "extension ''"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_rows(tmp_path / name)
    assert words in caught.value.wrong
    assert caught.value.do


def test_escaped_characters_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(r'{"prompt": "\ud83d\ude00 \u00e9"}')
    assert load_rows(path) == [{"prompt": "😀 é"}]


@pytest.mark.parametrize("state", ["{", "{}", "[]", "5", '{"_data_files": [{"filename": "no"}]}'])
def test_a_damaged_saved_dataset_is_refused(tmp_path, state):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(DataError, match="cannot be read") as caught:
        load_rows(tmp_path / "saved")
    assert caught.value.do


def test_missing_paths_and_wrong_settings_are_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json_lines(ROWS[:1]))
    (tmp_path / "empty").mkdir()
    for words, path, settings in [
        ("There is no file or folder nowhere.jsonl", "nowhere.jsonl", {}),
        ("has no row files.", tmp_path / "empty", {}),
        ("Options min_terms were given", file, {"options": {"min_terms": 2}}),
    ]:
        with pytest.raises(DataError) as caught:
            load_rows(path, **settings)
        assert words in caught.value.wrong
        assert caught.value.do
