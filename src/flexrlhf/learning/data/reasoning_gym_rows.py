"""Rows made by a reasoning-gym task, in a child process.

Some tasks draw from sets of texts, whose order Python changes from process to process; the child
fixes it, so that a seed always gives the same rows. Run as a program, this module is that child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flexrlhf.core.errors import DataError, nearest
from flexrlhf.core.plugins import require_package
from flexrlhf.core.sources import REASONING_GYM
from flexrlhf.learning.data.child_process import ChildDied, ChildProcess, serve


def generate_rows(
    task: str, *, size: int | None, seed: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns rows with columns `prompt`, `answer`, `metadata` and `task_options`.

    Raises:
        DataError: no task has this name, or it refuses an option.
        EngineMissing: reasoning-gym is not installed.
    """
    require_package("reasoning_gym", needed_by=f"The data set {REASONING_GYM}{task}")
    arguments = {**options, "seed": seed} | ({} if size is None else {"size": size})
    child = ChildProcess(__name__)
    try:
        num_rows = child.ask((task, arguments))
        entries = [child.ask(index) for index in range(num_rows)]
    except ChildDied as error:
        raise DataError(
            f"{REASONING_GYM}{task} stopped while making its rows.",
            f"Its options were {arguments}.",
            "Its own message stands above; try a smaller size or other options.",
        ) from error
    finally:
        child.close()
    return [
        {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "task_options": dict(options),
        }
        for entry in entries
    ]


def open_task(task: str, options: Mapping[str, Any]) -> Any:
    """Returns the `ProceduralDataset` of a task.

    Raises:
        DataError: no task has this name, or it refuses an option.
    """
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise DataError(
            f"reasoning-gym has no task {task!r}.",
            f"It has {len(DATASETS)} tasks, such as chain_sum.",
            nearest(task, DATASETS) or "See the gallery in reasoning-gym's documentation.",
        )
    known = [field.name for field in dataclasses.fields(DATASETS[task][1])]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DataError(
            f"The task {REASONING_GYM}{task} has no option {unknown[0]!r}.",
            f"It has {', '.join(known)}.",
            nearest(unknown[0], known) or "Remove the option.",
        )
    try:
        dataset = create_dataset(task, **options)
        dataset[0]  # some options are found wrong only when a row is made
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"The task {REASONING_GYM}{task} refuses its options: {error}.",
            f"They were {dict(options)}.",
            "Change the option that it names.",
        ) from error
    return dataset


class _OpenedTask:
    """The child's answers: the number of rows of a task that it opens, then each row."""

    def __init__(self) -> None:
        self._rows: Any = ()

    def __call__(self, request: Any) -> object:
        if isinstance(request, int):
            return self._rows[request]
        task, options = request
        self._rows = open_task(task, options)
        return len(self._rows)


if __name__ == "__main__":
    serve(_OpenedTask())
