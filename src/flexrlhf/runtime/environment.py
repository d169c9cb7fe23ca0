"""The environment of a run: what environment.json says, and how many threads it gets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final, Literal

from flexrlhf.config.section import MOST_THREADS
from flexrlhf.core.machine import logical_cpus, memory, physical_cores
from flexrlhf.runtime.installation import PROJECT, declared_packages, installed_version
from flexrlhf.runtime.machine import gpus, processor_name

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def set_threads(
    threads: int | Literal["auto"], environment: MutableMapping[str, str] = os.environ
) -> int:
    """Sets the threads of the libraries that compute, best before torch is first imported.

    Args:
        threads: a number, or `auto`: OMP_NUM_THREADS where the user has set it, else the physical
            cores.
        environment: the variables to set.

    Returns:
        The number of threads.
    """
    count = _wished_threads(environment) if threads == "auto" else threads
    for variable in THREAD_VARIABLES:
        environment[variable] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:  # it has read the variables already
        torch.set_num_threads(count)
    return count


def _wished_threads(environment: MutableMapping[str, str]) -> int:
    # The variable may be a list, one number for each level of nesting.
    wish = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    is_possible = wish.isdecimal() and len(wish) < 9 and 0 < int(wish) <= MOST_THREADS
    return int(wish) if is_possible else physical_cores()


def describe_environment(command: str) -> dict[str, Any]:
    """Returns what environment.json says: versions, machine, threads and command.

    A fact that cannot be had is absent.

    Args:
        command: the command line of the run.
    """
    facts: dict[str, Any] = {
        "command": command,
        PROJECT: installed_version(PROJECT) or "not installed",
        **source_commit(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "packages": {
            package.name: package.installed
            for package in declared_packages()
            if package.installed is not None
        },
        "system": platform.platform(),
        "processor": processor_name(),
        "physical_cores": physical_cores(),
        "logical_cpus": logical_cpus(),
        "threads": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }
    if (installed := memory()) is not None:
        facts["memory_bytes"] = installed.total_bytes
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["threads"]["torch"] = torch.get_num_threads()
        facts["gpus"] = [gpu.name for gpu in gpus()]
    return facts


def source_commit(folder: Path) -> dict[str, Any]:
    """Returns commit and state of the checkout that holds a package, nothing where none does.

    Args:
        folder: the package's folder, with its `__init__.py`.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {}  # installed, perhaps inside somebody else's checkout
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    if commit is None or changes is None:
        return {}
    return {"commit": commit, "has_changes": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
