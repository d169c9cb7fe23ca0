"""Checkpoints of a whole run: written atomically, read back bit for bit.

`checkpoints/iteration-N` holds every trained role's shard, the random states, and `run.json` with
what the loop itself must remember. A folder appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flexrlhf.core.atomic_files import atomic_folder
from flexrlhf.core.errors import CheckpointError, RunFailed
from flexrlhf.learning.models.tensor_files import read_tensors, write_tensors
from flexrlhf.runtime.run_folder import write_failure

FORMAT = 1
"""Raised when the layout of a checkpoint changes."""


class CheckpointStore:
    """The checkpoints of one run folder.

    Args:
        folder: `RUN_DIR/checkpoints`.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def newest(self) -> Path | None:
        """Returns the newest complete checkpoint."""
        complete = self._complete()
        return complete[-1] if complete else None

    @property
    def finished(self) -> int:
        """The finished iterations of the newest complete checkpoint; 0 without one."""
        newest = self.newest()
        return _iteration_of(newest) if newest else 0

    def save(
        self,
        iteration: int,
        save_roles: Callable[[Path], object],
        state: Mapping[str, Any],
        *,
        num_bytes: int,
    ) -> Path:
        """Writes the checkpoint of finished iteration `iteration` and removes old ones.

        Args:
            iteration: finished iterations.
            save_roles: writes the trained roles into a folder.
            state: JSON-able values of the loop.
            num_bytes: what `save_roles` will write, to check the disk first.

        Raises:
            RunFailed: the disk is too full; older checkpoints are left untouched.
        """
        folder = self._folder / f"iteration-{iteration}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _check_space(self._folder, num_bytes)
            with atomic_folder(folder) as partial:
                save_roles(partial)
                _save_random_states(partial)
                document = {"format": FORMAT, "iteration": iteration, **state}
                (partial / "run.json").write_text(json.dumps(document, indent=1))
        except OSError as error:
            raise write_failure(folder, error) from error
        self._remove_old()
        return folder

    def load(self, load_roles: Callable[[Path], object]) -> dict[str, Any] | None:
        """Restores the newest checkpoint and returns its state, or None when there is none.

        Raises:
            CheckpointError: the checkpoint cannot be read.
        """
        newest = self.newest()
        if newest is None:
            return None
        self._remove_old()  # of a run that was killed before it did
        state = _read_json(newest / "run.json")
        if state.get("format", FORMAT) != FORMAT:
            raise CheckpointError(
                f"{newest} has checkpoint format {state.get('format')}.",
                f"This version reads format {FORMAT}.",
                "Resume with the version that wrote it.",
            )
        if state.get("iteration") != _iteration_of(newest):
            raise _damaged(newest / "run.json", "it is not of this iteration")
        load_roles(newest)
        _load_random_states(newest)
        return state

    def _complete(self) -> list[Path]:
        """Returns the complete checkpoints, oldest first."""
        found = (p for p in self._folder.glob("iteration-*") if p.name[10:].isdecimal())
        return sorted(found, key=_iteration_of)

    def _remove_old(self) -> None:
        for old in self._complete()[: -self._keep]:
            doomed = old.with_name(f".{old.name}")  # half removed, it must not look complete
            old.rename(doomed)
            shutil.rmtree(doomed)


def _iteration_of(folder: Path) -> int:
    return int(folder.name.removeprefix("iteration-"))


def _check_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    needed = int(1.05 * num_bytes) + (1 << 20)
    if free < needed:
        raise RunFailed(
            f"A checkpoint needs {_size(needed)} in {folder}, {_size(free)} are free.",
            "The old checkpoints are kept until the new one is complete.",
            "Free some space, or lower run.keep_checkpoints, then start again with --resume.",
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


def _damaged(file: Path, error: Exception | str) -> CheckpointError:
    return CheckpointError(
        f"{file} cannot be read: {error}",
        "A checkpoint is whole, or it is not there.",
        f"Delete {file.parent} to go on from an older checkpoint, or from the start.",
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, error) from error
    if not isinstance(document, dict):
        raise _damaged(file, "it holds no object")
    return document


def seed_random_states(seed: int) -> None:
    """Sets the global generators, from which a reward function may draw."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def _save_random_states(folder: Path) -> None:
    """Keeps the global generators; the loop draws from its own, a reward function may not."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    (folder / "random.json").write_text(json.dumps(state))
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    write_tensors(folder / "random.safetensors", tensors)


def _load_random_states(folder: Path) -> None:
    path = folder / "random.json"
    state = _read_json(path)
    try:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
        path = folder / "random.safetensors"
        tensors = read_tensors(path)
        torch.set_rng_state(tensors["cpu"])
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
