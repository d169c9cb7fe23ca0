"""Reads one file of rows, whatever its format; a damaged row is named by file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flexrlhf.core.errors import DataError
from flexrlhf.core.plugins import import_package

Row = dict[str, Any]

_UTF8 = "utf-8-sig"
"""UTF-8 whose first character may be a byte-order mark."""
_NOT_JSON = (ValueError, RecursionError)
"""No JSON, no UTF-8, a number of thousands of digits; or brackets in brackets without end."""


def read_row_file(path: Path) -> list[Row]:
    """Returns the rows of a file.

    Raises:
        DataError: the extension is unknown, or the content is not what it says.
        EngineMissing: the package that reads the format is not installed.
    """
    if path.suffix not in ROW_FILES:
        raise DataError(
            f"{path} has the extension {path.suffix!r}, which no reader knows.",
            f"Known: {', '.join(ROW_FILES)}.",
            "Convert the file, or correct its name.",
        )
    return ROW_FILES[path.suffix](path)


def _read_json_lines(path: Path) -> list[Row]:
    with path.open("rb") as file:
        return [
            _parse_line(path, number, line)
            for number, line in enumerate(file, start=1)
            if line.strip()
        ]


def _parse_line(path: Path, number: int, line: bytes) -> Row:
    place = f"{path}, line {number}"
    try:
        row = _parse(line.rstrip())
    except json.JSONDecodeError as error:
        said = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        raise _broken_line(place, said) from error
    except _NOT_JSON as error:
        raise _broken_line(place, str(error)) from error
    return _checked_row(row, place)


def _parse(content: bytes) -> Any:
    """Returns the JSON value of a text; raises one of `_NOT_JSON`."""
    text = content.decode(_UTF8)
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no character
    return value


def _broken_line(place: str, said: str) -> DataError:
    return DataError(
        f"{place} is broken: {said}.",
        "Every line holds one JSON object, in UTF-8.",
        "Repair or remove the line.",
    )


def _read_json(path: Path) -> list[Row]:
    """Reads a list of objects; like `datasets`, also one object a line."""
    content = path.read_bytes()
    if not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _read_json_lines(path)
    try:
        rows = _parse(content)
    except _NOT_JSON as error:
        raise DataError(
            f"{path} is broken: {error}.",
            "A .json file holds a list of objects, or one object a line.",
            "Repair it.",
        ) from error
    return [_checked_row(row, f"{path}, item {number}") for number, row in enumerate(rows)]


def _checked_row(row: object, place: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(
            f"{place} holds {str(row)[:80]}, which names no columns.",
            'A row is an object that names its columns, such as {"prompt": "..."}.',
            "Give the value the name of its column.",
        )
    return row


def _read_table(path: Path, module: str, read: Callable[[Any, Path], Any]) -> list[Row]:
    """Reads a file through pyarrow.

    Args:
        path: the file.
        module: the part of pyarrow to import.
        read: returns the table, given this module and the path.
    """
    needed_by = f"The data file {path}"
    arrow = import_package("pyarrow", needed_by=needed_by)
    try:
        return read(import_package(module, needed_by=needed_by), path).to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read: {error}.",
            f"Its content must be what the extension {path.suffix} says.",
            "Make the file anew, or correct its name.",
        ) from error


def _read_parquet(path: Path) -> list[Row]:
    return _read_table(path, "pyarrow.parquet", lambda parquet, file: parquet.read_table(file))


def _read_csv(path: Path) -> list[Row]:
    return _read_table(path, "pyarrow.csv", lambda csv, file: csv.read_csv(file))


def _read_arrow(path: Path) -> list[Row]:
    return _read_table(path, "pyarrow.ipc", lambda ipc, file: ipc.open_stream(file).read_all())


ROW_FILES: Final[dict[str, Callable[[Path], list[Row]]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".arrow": _read_arrow,
}
