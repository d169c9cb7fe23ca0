"""Which programs compete in a job, and in which settings each is tried."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contestant import Entry
from jobs import Job, Peer, Reinforcing
from material import Material

from flexrlhf.core.algorithm_specs import BUILT
from flexrlhf.core.errors import ConfigError
from flexrlhf.runtime.environment import THREAD_VARIABLES

OURS: Final = "flexrlhf"
_PROGRAMS: Final = Path(__file__).parent / "programs"
_OWN: Final = ("transformers", "limit")
"""What runs in the environment of this package, which holds the same transformers."""
_SETTINGS: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {"vllm": {"compiled": (False, True)}}


def entries(job: Job, material: Material, peers: Path, threads: Sequence[int]) -> list[list[Entry]]:
    """Returns the settings of each program, ours first.

    Args:
        job: to be done.
        material: of the job.
        peers: folder of their environments.
        threads: to be tried.

    Raises:
        ConfigError: we cannot do the job, or a peer is not installed.
    """
    return [
        _of_program(job, material, program, {"threads": threads, **_SETTINGS.get(program.kind, {})})
        for program in _programs(job, peers)
    ]


def seeded_entries(job: Job, material: Material, peers: Path) -> list[list[Entry]]:
    """Returns the runs of each program whose curves are compared, ours first.

    Args:
        job: to be done; one with a curve.
        material: of the job.
        peers: folder of their environments.

    Raises:
        ConfigError: we cannot do the job, or a peer is not installed.
    """
    assert isinstance(job, Reinforcing), "checked with the job"
    assert job.curve is not None, "only jobs with a curve are asked for it"
    choices = {"threads": (1,), "seed": range(1, job.curve.seeds + 1)}
    return [_of_program(job, material, program, choices) for program in _programs(job, peers)]


@dataclass(frozen=True, slots=True)
class _Program:
    kind: str
    """The first word of its script's name."""
    name: str
    python: Path


def _programs(job: Job, peers: Path) -> list[_Program]:
    if job.does not in ("generate", *BUILT):
        raise ConfigError(
            f"Algorithm {job.does!r} is not built.",
            f"What can be timed: generate, {', '.join(BUILT)}.",
            "Choose other jobs with --jobs.",
        )
    return [
        _Program(OURS, OURS, Path(sys.executable)),
        *(_Program(peer.program, peer.name, _python(peer, peers)) for peer in job.peers),
    ]


def _of_program(
    job: Job, material: Material, program: _Program, choices: Mapping[str, Sequence[Any]]
) -> list[Entry]:
    does = "train" if program.kind == OURS and job.does != "generate" else job.does
    script = _PROGRAMS / f"{program.kind}_{does}.py"
    return [
        Entry(
            name=program.name,
            command=[str(program.python), str(script)],
            environment=_environment(program.kind, settings["threads"]),
            assignment={
                "job": job.model_dump(mode="json"),
                "folder": str(material.folder),
                "model": str(material.model),
                "scorer": str(material.scorer),
                "tokenizer": str(material.tokenizer),
                "settings": settings,
            },
            settings=settings,
            deadline_s=job.turn.deadline_s,
        )
        for values in itertools.product(*choices.values())
        for settings in [dict(zip(choices, values, strict=True))]
    ]


def _python(peer: Peer, peers: Path) -> Path:
    if peer.program in _OWN:
        return Path(sys.executable)
    python = peers / peer.name.replace(" ", "-") / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            f"{peer.name} is not installed: there is no {python}.",
            "Each peer has an environment of its own.",
            "Run `make bench`, which makes them.",
        )
    return python


def _environment(program: str, threads: int) -> dict[str, str]:
    """Returns the variables of a program; peers do not see this package, nor the network."""
    variables = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    if program != OURS:
        variables.pop("PYTHONPATH", None)
    return variables | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
