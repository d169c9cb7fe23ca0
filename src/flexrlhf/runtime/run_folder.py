"""The folder of a run: made once, used by one process at a time, resumed only by its own config."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from flexrlhf.config.loading import dump_config, load_saved_config
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError, EngineMissing, PlanError, RunFailed

MAY_CHANGE: Final = (
    "cluster",
    "placement",
    "training.iterations",
    "run.trackers",
    "rollout.speculation",
    "rollout.speculative_tokens",
    "rollout.speculative_acceptance",
    "rollout.draft_model",
)
"""What a resumed run may ask for anew; speculation changes no answer."""


def default_folder(algorithm: str) -> Path:
    """Returns `runs/ALGORITHM-TIME`, in UTC."""
    return Path("runs") / f"{algorithm}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


@contextmanager
def opened(folder: Path, *, resume: bool) -> Iterator[Path]:
    """Makes the folder and keeps other processes out of it until the block ends.

    Raises:
        ConfigError: it is in use, it has contents and `resume` is not set, or it cannot be a run's
            folder.
    """
    try:
        _check_contents(folder, resume=resume)
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"Run folder {folder} cannot be written: {error.strerror}.",
            "A run folder can be made, read and written.",
            "Choose another --run-dir.",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Run folder {folder} is in use by another process.",
                "One process at a time writes into a run folder.",
                "Wait until it ends, or choose another --run-dir.",
            ) from error
        try:
            yield folder
        except (ConfigError, PlanError, EngineMissing, KeyboardInterrupt) as error:
            is_nothing = not isinstance(error, KeyboardInterrupt) or _has_only_begun(folder)
            if is_nothing and not resume:  # nothing was started, so nothing stays
                _empty(folder)
                for path in made:
                    path.rmdir()
            raise


def _check_contents(folder: Path, *, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} is a file.", "A run folder is a folder.", "Choose another --run-dir."
        )
    has_contents = folder.is_dir() and any(p.name != ".lock" for p in folder.iterdir())
    if has_contents and not resume:
        raise ConfigError(
            f"Run folder {folder} exists and is not empty.",
            "A new run starts in a new folder.",
            "Choose another --run-dir, or go on with this run by --resume.",
        )
    if resume and not ((folder / "config.yaml").is_file() or _has_only_begun(folder)):
        raise ConfigError(
            f"{folder} holds no run: it has no config.yaml.",
            "--resume goes on with a run that was started before.",
            "Give the folder of that run as --run-dir, or leave --resume out.",
        )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _has_only_begun(folder: Path) -> bool:
    """Returns whether a run was killed in this folder before it wrote its config."""
    is_used = (folder / ".lock").is_file()
    return is_used and all(p.name[0] == "." or p.name == "log.txt" for p in folder.iterdir())


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left half written in the folder of a run or stage."""
    for path in (*folder.glob(".*"), *folder.glob("checkpoints/.*")):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def write_config(config: RunConfig, folder: Path) -> None:
    """Writes `config.yaml`."""
    write_text(folder / "config.yaml", dump_config(config))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a JSON document, whole or not at all."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all.

    Raises:
        RunFailed: the disk is full or the folder cannot be written.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise write_failure(path, error) from error


def write_failure(path: Path, error: OSError) -> RunFailed:
    """Returns what it means for a run that a file or folder of it cannot be written."""
    return RunFailed(
        f"Writing {path} failed: {error.strerror or error}.",
        "Finished checkpoints are untouched.",
        "Free some space or mend the permissions, then start again with --resume.",
    )


def resumed_config(asked: RunConfig, folder: Path) -> RunConfig:
    """Returns the config that a resumed run uses: the saved one with what may change.

    `auto` values that the first start measured are taken over. A run that was killed before it
    wrote its config starts with the asked one.

    Raises:
        ConfigError: the asked config differs where a resumed run may not.
    """
    if not (folder / "config.yaml").is_file():
        return asked
    saved = load_saved_config(folder / "config.yaml").model_dump(mode="json")
    wanted = asked.model_dump(mode="json")
    differing: list[str] = []
    merged = _merged(saved, wanted, "", differing)
    if differing:
        raise ConfigError(
            f"--resume with another config than {folder / 'config.yaml'}: "
            + "; ".join(differing)
            + ".",
            f"Only {', '.join(MAY_CHANGE)} may change, in each stage.",
            "Put these values back, or start a new run.",
        )
    return RunConfig.model_validate(merged)


def _merged(saved: Any, asked: Any, key: str, differing: list[str]) -> Any:
    if key in MAY_CHANGE:
        return asked
    if key == "stages":
        return _merged_stages(saved, asked, differing)
    if isinstance(saved, dict) and isinstance(asked, dict):
        return {
            name: _merged(saved.get(name), asked.get(name), f"{key}.{name}".strip("."), differing)
            for name in saved | asked
        }
    if asked not in (saved, "auto"):
        differing.append(f"{key} was {saved!r}, now {asked!r}")
    return saved


def _merged_stages(
    saved: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], differing: list[str]
) -> list[Any]:
    names, asked_names = ([stage["name"] for stage in stages] for stages in (saved, asked))
    if names != asked_names:
        differing.append(f"stages were {names}, now {asked_names}")
        return []
    merged: list[Any] = []
    for name, saved_stage, asked_stage in zip(names, saved, asked, strict=True):
        found: list[str] = []
        merged.append(_merged(saved_stage, asked_stage, "", found))
        differing += [f"stages.{name}.{difference}" for difference in found]
    return merged
