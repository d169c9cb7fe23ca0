"""Case files: rows in, the same rows with their predictions out."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import DataError
from flexrlhf.planning.cases.vocabulary import COLUMNS, OPTIONAL_COLUMNS

Row = Mapping[str, str]
ANSWERS: Final = ("predicted", "status", "assumptions")
"""Columns that a prediction adds."""


def read_cases(path: Path) -> list[tuple[int, Row]]:
    """Returns the rows of a case file with the lines on which they end.

    Raises:
        DataError: the file is missing, no CSV, without rows, or lacks columns.
    """
    reader = csv.DictReader(io.StringIO(_text_of(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        _check_header(path, header)
        reader.fieldnames = header
        rows: list[tuple[int, Row]] = []
        for row in reader:
            _check_row(path, reader.line_num, row)
            rows.append((reader.line_num, row))
    except csv.Error as error:
        raise DataError(
            f"{path} is no CSV: {error}, line {reader.line_num}.",
            "Cells are separated by commas; one with a comma or a line break stands in quotes.",
            "Save it as CSV.",
        ) from error
    if not rows:
        raise DataError(
            f"{path} has a header but no rows.", "Each row is one case.", "Add some cases."
        )
    return rows


def write_predictions(path: Path, rows: Sequence[Row]) -> None:
    """Writes answered rows; they appear under the file's name when all are there.

    Raises:
        DataError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    columns = dict.fromkeys((*rows[0], *ANSWERS))
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        write_atomically(path, text.getvalue())
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror or error}.",
            "It is a file in a folder that exists and may be written to.",
            "Choose another --out.",
        ) from error


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"The case file {path} cannot be read: {error.strerror or error}.",
            "It is a CSV file that exists.",
            "Correct the path.",
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"The case file {path} is no UTF-8 text.", "It is a CSV file.", "Save it as CSV, UTF-8."
        ) from error
    if not text.strip():
        raise DataError(
            f"The case file {path} is empty.",
            f"It begins with a header that names the columns {', '.join(COLUMNS[:4])}, ...",
            "Give a file with cases.",
        )
    return text


def _columns(number: int) -> str:
    return "one column" if number == 1 else f"{number} columns"


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in header and name not in OPTIONAL_COLUMNS]
    if missing:
        shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        raise DataError(
            f"The header of {path} lacks {_columns(len(missing))}: {shown}.",
            "The first line names every column of benchmarks/published/README.md; cells may be"
            " empty.",
            "Add the columns, or give the header line if there is none.",
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(
            f"The header of {path} names {', '.join(twice)} twice.",
            "Each column stands there once.",
            "Remove one of them.",
        )


def _check_row(path: Path, line: int, row: Mapping[str | None, str | list[str] | None]) -> None:
    if None in row or None in row.values():
        raise DataError(
            f"Line {line} of {path} has {'more' if None in row else 'fewer'} cells than the header"
            " has columns.",
            "Every row has a cell for each column; an empty one stands for what is not stated.",
            "Correct the line; a cell with a comma stands in quotes.",
        )
