"""The parts of the check, and the packages that each of them needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_PYTHON = (3, 11)
_TENSORS = {"torch": "2.11", "numpy": "2.0"}
_MODELS = {**_TENSORS, "transformers": "5.16", "safetensors": "0.5", "psutil": "6.0"}
_RUNS = {**_MODELS, "pydantic": "2.10", "pyyaml": "6.0", "packaging": "24.0"}
_MODULES = {"pyyaml": "yaml"}
"""Names under which packages are imported, where these are others."""


@dataclass(frozen=True)
class Part:
    """Some of the check, run in a process of its own."""

    name: str
    file: str
    says: str
    needs: Mapping[str, str] = field(default_factory=dict)
    """The least version of every package."""


PARTS = (
    Part("formulas", "formulas.py", "losses, sampling, optimiser, bytes, weights", _TENSORS),
    Part("models", "models.py", "passes, generation and training of small random models", _MODELS),
    Part("graphs", "graphs.py", "captured decode steps against launched ones", _MODELS),
    Part("runs", "runs.py", "PPO with four models, colocated and disaggregated", _RUNS),
)


def old_python() -> str:
    """Returns why this interpreter is too old; nothing if it is not."""
    if sys.version_info >= LEAST_PYTHON:
        return ""
    least = ".".join(map(str, LEAST_PYTHON))
    return f"Python {sys.version.split()[0]} is there, {least} is needed"


def missing(needs: Mapping[str, str]) -> str:
    """Returns which packages are not there or too old; nothing if all are there."""
    said = [text for name, least in needs.items() if (text := _lack(name, least))]
    return ", ".join(said)


def _lack(name: str, least: str) -> str:
    try:
        if importlib.util.find_spec(_MODULES.get(name, name)) is None:
            return f"no {name}"
        found = importlib.metadata.version(name)
    except (ImportError, ValueError):
        return f"no {name}"
    return "" if _numbers(found) >= _numbers(least) else f"{name} {found}, {least} is needed"


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: 2.11.0+cu130 gives (2, 11, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
