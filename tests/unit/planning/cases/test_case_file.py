"""Case files, good and bad."""

from __future__ import annotations

import csv

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.planning.cases.case_file import read_cases, write_predictions
from flexrlhf.planning.cases.vocabulary import COLUMNS

HEADER = ",".join(COLUMNS)


def test_rows_come_with_their_lines(tmp_path, row):
    path = tmp_path / "cases.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(row(interconnect='8 lanes, "fast"\nreally'))
        writer.writerow(row())
    found = read_cases(path)
    assert [line for line, _ in found] == [3, 4]
    assert found[0][1]["interconnect"] == '8 lanes, "fast"\nreally'


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (HEADER.encode(), "no rows"),
        (b"a,b\n1,2\n", "lacks"),
        (b"DeepSpeed-Chat,ppo,8\n", "lacks"),
        (HEADER.replace("n_gpus,", "").encode() + b"\n", "lacks one column: n_gpus"),
        (HEADER.encode() + b",gpu\n", "names gpu twice"),
        (HEADER.encode() + b"\nverl,ppo\n", "fewer cells"),
        (HEADER.encode() + b"\n" + b"," * 200 + b"\n", "more cells"),
        (HEADER.encode() + b'\n"never closed', "no CSV"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "no UTF-8"),
    ],
)
def test_bad_files_are_errors_in_three_parts(tmp_path, content, wrong):
    path = tmp_path / "cases.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        read_cases(path)
    assert wrong in raised.value.wrong
    assert raised.value.right
    assert raised.value.do


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_cases(tmp_path / "none.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_cases(tmp_path)


def test_answers_stand_behind_the_columns_of_the_file(tmp_path):
    path = tmp_path / "out.csv"
    cells = {"predicted": "1.5", "status": "ok", "assumptions": "a; b"}
    write_predictions(path, [{"id": "x-1", "extra": "kept"} | cells])
    assert path.read_text() == "id,extra,predicted,status,assumptions\nx-1,kept,1.5,ok,a; b\n"


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        write_predictions(tmp_path / "none" / "out.csv", [{"id": "x"}])
