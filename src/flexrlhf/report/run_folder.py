"""Reads a run folder into one value, whatever state a killed run left it in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flexrlhf.core.errors import ConfigError, DataError
from flexrlhf.core.timeline import Timeline, read_trace
from flexrlhf.report.answers import Answer, read_answers
from flexrlhf.report.run_files import read_json, read_json_lines, read_text, read_yaml

_LOG_LINES = 200
_LAST_ITERATION = 1 << 62
_LARGEST_DRAWN = 1e100
"""Numbers beyond these are damage; axes cannot show them, and some do not even fit into a float."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that the report shows of one run, or of one stage of it."""

    path: Path
    name: str
    config: Mapping[str, Any]
    config_text: str
    plan: Mapping[str, Any]
    metrics: tuple[Mapping[str, float], ...]
    """One mapping per finished iteration, in order; `iteration` counts from 1 and is always there.

    Iteration 0, where there is one, holds what was evaluated before training.
    """
    timelines: Mapping[str, Timeline]
    """By process: `measured`, and `predicted` where a planner wrote one."""
    answers: tuple[Answer, ...]
    environment: Mapping[str, Any]
    log_tail: str
    notes: tuple[str, ...]
    """What could not be read, in words for the reader of the page."""
    stages: tuple[RunRecord, ...] = ()

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; empty where the config does not say."""
        return str(setting(self.config, "algorithm.name", ""))

    @property
    def finished_iterations(self) -> int:
        """Number of iterations that were finished."""
        return int(self.metrics[-1]["iteration"]) if self.metrics else 0

    @property
    def progress(self) -> str:
        """Finished iterations in words: `50`, or `31 of 50` where some are missing."""
        done, planned = self.finished_iterations, self.planned_iterations
        return f"{done} of {planned}" if planned is not None and done < planned else str(done)

    @property
    def planned_iterations(self) -> int | None:
        """Iterations that the config asks for; None where it does not say."""
        planned = setting(self.config, "training.iterations")
        return planned if isinstance(planned, int) else None


def read_run(path: Path | str) -> RunRecord:
    """Reads the run folder `path`; a missing or damaged file becomes a note.

    Raises:
        ConfigError: the folder does not exist, or neither it nor a stage in it has metrics.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(
            f"Run folder {str(folder)!r} {'is a file' if folder.exists() else 'does not exist'}.",
            "A run folder is what `flexrlhf train` writes: config.yaml, metrics.jsonl and more.",
            "Give the folder that `flexrlhf train` printed.",
        )
    record = _read_folder(folder)
    record = replace(record, stages=_read_stages(record))
    if not record.metrics and not record.stages:
        raise ConfigError(
            f"Run folder {str(folder)!r} has no metrics.",
            "A run that finished one iteration has a line in metrics.jsonl, or in that of a "
            "stage under stages/.",
            "Look into log.txt for why the run stopped before its first iteration was finished.",
        )
    return record


def setting(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Returns the value at the dotted `key` of nested mappings, or `default`."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _read_stages(run: RunRecord) -> tuple[RunRecord, ...]:
    """Stages that have metrics, in the order of the config; what they lack, the run has for all."""
    order = [entry.get("name") for entry in _entries(run.config, "stages")]
    plans = _entries(run.plan, "plans")
    folders = {path.name: path for path in (run.path / "stages").glob("*") if path.is_dir()}
    names = [name for name in order if name in folders]
    names += sorted(name for name in folders if name not in order)
    stages: list[RunRecord] = []
    for name in names:
        stage = _read_folder(folders[name])
        if not stage.plan and name in order and order.index(name) < len(plans):
            stage = replace(stage, plan={"plans": [plans[order.index(name)]]})
        if not stage.environment:
            stage = replace(stage, environment=run.environment)
        if stage.metrics:
            stages.append(stage)
    return tuple(stages)


def _entries(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings in the list at `key`; none where there is no such list."""
    values = document.get(key)
    return [v for v in values if isinstance(v, Mapping)] if isinstance(values, list) else []


def _read_folder(folder: Path) -> RunRecord:
    notes: list[str] = []
    return RunRecord(
        path=folder,
        name=folder.resolve().name,
        config=read_yaml(folder / "config.yaml", notes),
        config_text=read_text(folder / "config.yaml"),
        plan=read_json(folder / "plan.json", notes),
        metrics=_read_metrics(folder / "metrics.jsonl", notes),
        timelines=_read_timelines(folder / "timeline.json", notes),
        answers=read_answers(folder / "samples.jsonl", notes),
        environment=read_json(folder / "environment.json", notes),
        log_tail="\n".join(read_text(folder / "log.txt").splitlines()[-_LOG_LINES:]),
        notes=tuple(notes),
    )


def _read_metrics(path: Path, notes: list[str]) -> tuple[Mapping[str, float], ...]:
    """Numbers per iteration; where an iteration is written twice, the later line counts."""
    lines: dict[int, Mapping[str, float]] = {}
    for row in read_json_lines(path, notes):
        iteration = row.get("iteration")
        if not isinstance(iteration, int) or abs(iteration) > _LAST_ITERATION:
            notes.append(f"{path.name}: a line without `iteration` was left out.")
            continue
        numbers = {key: value for key, value in row.items() if _is_number(value)}
        notes.extend(
            f"{key} is {value} at iteration {iteration}: it is not drawn."
            for key, value in numbers.items()
            if not math.isfinite(value)
        )
        lines[iteration] = numbers
    return tuple(lines[iteration] for iteration in sorted(lines))


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_said = isinstance(value, float) and not math.isfinite(value)  # in a note
    return is_said or abs(value) <= _LARGEST_DRAWN


def _read_timelines(path: Path, notes: list[str]) -> Mapping[str, Timeline]:
    if not path.is_file():
        return {}
    try:
        return read_trace(path)
    except DataError:
        notes.append(f"{path.name} is not a whole trace and was left out.")
        return {}
