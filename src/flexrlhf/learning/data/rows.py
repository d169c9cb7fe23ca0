"""Finds the rows of a data set: a file, a folder, or a task that makes its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flexrlhf.core.errors import DataError
from flexrlhf.core.plugins import import_package
from flexrlhf.core.sources import REASONING_GYM
from flexrlhf.learning.data.reasoning_gym_rows import generate_rows
from flexrlhf.learning.data.row_files import ROW_FILES, Row, read_row_file

_TRAINING: Final = "train"
"""The split that is read of a data set with several."""


def load_rows(
    path: str | Path,
    *,
    size: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Sequence[Row]:
    """Returns the rows of a data set; of one with several splits, those of `train`.

    Args:
        path: a file (`row_files.ROW_FILES`), a folder of such files, a folder that `datasets` saved
            with `save_to_disk`, or `reasoning_gym:TASK`.
        size: rows of a reasoning-gym task (its own default when None); of files, at most the first
            `size` rows are kept.
        seed: of a reasoning-gym task.
        options: of a reasoning-gym task, by its own names.

    Raises:
        DataError: nothing is there, it cannot be read, or it has no rows.
        EngineMissing: the package that reads it is not installed.
    """
    if str(path).startswith(REASONING_GYM):
        task = str(path).removeprefix(REASONING_GYM)
        return generate_rows(task, size=size, seed=seed, options=options or {})
    if options:
        raise DataError(
            f"Options {', '.join(options)} were given for {path}.",
            f"Only a task that makes its own rows, {REASONING_GYM}TASK, takes options.",
            "Remove them.",
        )
    rows = _read(Path(path))[:size]
    if not rows:
        raise DataError(f"{path} has no rows.", "At least one row is needed.", "Check the file.")
    return rows


def _read(path: Path) -> list[Row]:
    if path.is_file():
        return read_row_file(path)
    if not path.is_dir():
        raise DataError(
            f"There is no file or folder {path} (looked for {path.absolute()}).",
            f"A data set is a file ({', '.join(ROW_FILES)}), a folder, or {REASONING_GYM}TASK.",
            "Correct the path; a data set of a hub must be downloaded first.",
        )
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        return _read_saved_dataset(path)
    return [row for file in _training_files(path) for row in read_row_file(file)]


def _read_saved_dataset(path: Path) -> list[Row]:
    """Returns the rows of a folder made by `save_to_disk`."""
    datasets = import_package("datasets", needed_by=f"The data set {path}")
    try:
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"The data set {path} cannot be read: {type(error).__name__}: {error}.",
            "The folder must be as `save_to_disk` left it.",
            "Save it again.",
        ) from error
    if isinstance(saved, datasets.DatasetDict):
        saved = saved[_training_split(path, list(saved))]
    return saved.to_list()


def _training_split(path: Path, known: list[str]) -> str:
    split = known[0] if len(known) == 1 else _TRAINING
    if split not in known:
        raise DataError(
            f"The data set {path} has no split {split!r}.",
            f"It has {', '.join(known)}.",
            f"Give the folder of one of them, such as {path / known[0]}.",
        )
    return split


def _training_files(folder: Path) -> list[Path]:
    """Returns the folder's row files, in order of their names: of its training part, if it has one.

    As on the hub, `train.jsonl` and `train-00000-of-00002.parquet` belong to split `train`.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in ROW_FILES and file.is_file())
    if not files:
        raise DataError(
            f"The folder {folder} has no row files.",
            f"Row files end with {', '.join(ROW_FILES)}.",
            "Correct the path.",
        )
    return [file for file in files if _split_of(file) == _TRAINING] or files


def _split_of(file: Path) -> str:
    """Returns what stands before the first `-` or `.` of a file's name."""
    return file.name.partition(".")[0].partition("-")[0]
