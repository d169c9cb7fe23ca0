"""What a run writes while it goes on: metrics, samples, trackers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flexrlhf.core.plugins import load_plugin
from flexrlhf.learning.data.experience import Sample
from flexrlhf.runtime.run_folder import write_failure, write_text


class Tracker(Protocol):
    """Sends metrics to a dashboard."""

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration."""
        ...

    def close(self) -> None:
        """Flushes and lets go."""
        ...


TRACKERS: Mapping[str, str] = {
    "tensorboard": "flexrlhf.runtime.tensorboard:TensorBoardTracker",
}


class RunRecords:
    """Appends to `metrics.jsonl` and `samples.jsonl` of a run folder.

    Args:
        folder: the run folder.
        trackers: names from `TRACKERS`.
    """

    def __init__(self, folder: Path, trackers: Sequence[str]) -> None:
        self._folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._samples = folder / "samples.jsonl"
        self._trackers: list[Tracker] = [
            load_plugin("run.trackers", TRACKERS, name)(folder) for name in trackers
        ]

    def restart_after(self, iteration: int, is_evaluated: Callable[[int], bool]) -> None:
        """Drops what a run that goes on after iteration `iteration` would not have written.

        That is every line of a later iteration, and the evaluation of a last iteration that is no
        longer the last.

        Args:
            iteration: the newest that is finished; -1 for none, not even the first evaluation.
            is_evaluated: says whether a finished iteration is evaluated.
        """
        for path in (self._metrics, self._samples):
            if path.exists():
                with _disk_failures(path):
                    rows = [row for row in read_rows(path) if row["iteration"] <= iteration]
                kept = (
                    row if is_evaluated(row["iteration"]) else _without_evaluation(row)
                    for row in rows
                )
                write_text(path, "".join(json.dumps(row) + "\n" for row in kept if row))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of finished iteration `iteration`."""
        row = {"iteration": iteration, **metrics}
        _append(self._metrics, [row])
        with _disk_failures(self._folder):
            for tracker in self._trackers:
                tracker.write(iteration, metrics)

    def write_samples(self, iteration: int, rows: Sequence[Mapping[str, Any]], kind: str) -> None:
        """Appends answers of finished iteration `iteration`, as `sample_row` gives them."""
        _append(self._samples, [{"iteration": iteration, "kind": kind, **row} for row in rows])

    def close(self) -> None:
        """Flushes the trackers."""
        with _disk_failures(self._folder):
            for tracker in self._trackers:
                tracker.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSON-lines file of a run; torn and damaged lines are left out."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("iteration"), int):
            rows.append(row)
    return rows


def _without_evaluation(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a line of metrics or samples without what an evaluation found, if that leaves any."""
    if row.get("kind") == "evaluation":
        return {}
    return {key: value for key, value in row.items() if not key.startswith("eval/")}


def sample_row(sample: Sample) -> dict[str, Any]:
    """Returns what `samples.jsonl` says of an answer."""
    return {
        "sample_id": sample.sample_id,
        "prompt": sample.prompt.text,
        "response": sample.text,
        "reward": sample.reward,
        "reward_parts": sample.reward_parts,
        "finished": sample.finished,
        "response_tokens": sample.num_response_tokens,
    }


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with _disk_failures(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()


@contextmanager
def _disk_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_failure(path, error) from error
