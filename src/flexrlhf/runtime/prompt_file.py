"""Prompts that a user gives to a trained policy in a file."""

from __future__ import annotations

from pathlib import Path

from flexrlhf.core.errors import ConfigError, DataError
from flexrlhf.learning.data.conversation import Messages
from flexrlhf.learning.data.row_files import Row
from flexrlhf.learning.data.rows import load_rows

PromptContent = str | Messages
"""A text, or a conversation up to where the policy answers."""


def read_prompts(file: Path) -> list[PromptContent]:
    """Returns the prompts of a file: column `prompt` of each row of a .jsonl, else a line each.

    Raises:
        ConfigError: the file is missing, not readable as text, or without prompts.
    """
    if file.suffix == ".jsonl":
        return [_prompt(row, file, number) for number, row in enumerate(load_rows(file))]
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not a text file: byte {error.start} is not UTF-8.",
            "A file of prompts has one in each line, or is a .jsonl with a column 'prompt'.",
            "Give another file, or save this one as UTF-8.",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"The file of prompts {file} cannot be read: {error.strerror}.",
            f"The current folder is {Path.cwd()}.",
            "Correct --prompts.",
        ) from error
    if not lines:
        raise DataError(f"{file} is empty.", "It has a prompt in each line.", "Add one.")
    return list(lines)


def _prompt(row: Row, file: Path, number: int) -> PromptContent:
    if "prompt" not in row:
        raise DataError(
            f"{file}, whose rows count from 0: row {number} has no column 'prompt'.",
            f"It has {', '.join(row) or 'none'}.",
            "Rename the column, or repair the row.",
        )
    return row["prompt"]
