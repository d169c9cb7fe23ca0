"""Programs in turns: the best settings of each are found, then all alternate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from contestant import Contestant, Entry, TurnDone
from jobs import Job

from flexrlhf.core.errors import RunFailed

_LONG_S: Final = 10.0
"""Of a turn that says by itself how good a setting is; of shorter ones the better of two does."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a program did."""

    name: str
    settings: dict[str, Any]
    versions: dict[str, str]
    start_up_s: float
    """From its command to the end of a first turn, which is not timed."""
    seconds: tuple[float, ...]
    """Of each turn."""
    peak_bytes: int


def contest(job: Job, entries: Sequence[Sequence[Entry]], repeats: int) -> list[Result]:
    """Lets programs alternate.

    Args:
        job: that all of them do.
        entries: settings of each program, of which the fastest competes.
        repeats: turns of each.

    Returns:
        A result per program, in the same order.

    Raises:
        RunFailed: a program ended, was late, or did other work than the job's.
    """
    with ExitStack() as stack:
        running = [_started(job, settings, stack) for settings in entries]
        turns: list[list[TurnDone]] = [[] for _ in running]
        for repeat in range(repeats):
            first = repeat % len(running)  # so that none always comes after the same one
            for place in [*range(first, len(running)), *range(first)]:
                turns[place].append(_checked(job, running[place]))
        return [
            Result(
                name=program.entry.name,
                settings=dict(program.entry.settings),
                versions=dict(program.versions),
                start_up_s=program.start_up_s,
                seconds=tuple(turn.seconds for turn in done),
                peak_bytes=done[-1].peak_bytes,
            )
            for program, done in zip(running, turns, strict=True)
        ]


def _started(job: Job, settings: Sequence[Entry], stack: ExitStack) -> Contestant:
    """Returns the program in the fastest of its settings, ready for its first turn."""
    programs: list[tuple[float, Contestant]] = []
    for number, entry in enumerate(settings):
        program = stack.enter_context(closing(Contestant(entry, log_of(entry, number))))
        seconds = _tried(job, program) if len(settings) > 1 else 0.0
        programs = sorted([*programs, (seconds, program)], key=itemgetter(0))
        for _, slower in programs[1:]:
            slower.close()
        programs = programs[:1]
    return programs[0][1]


def _tried(job: Job, program: Contestant) -> float:
    seconds = _checked(job, program).seconds
    return seconds if seconds > _LONG_S else min(seconds, _checked(job, program).seconds)


def _checked(job: Job, program: Contestant) -> TurnDone:
    """Returns a turn in which the program did as much as the job says.

    Raises:
        RunFailed: it did not.
    """
    done = program.turn()
    sys.stderr.write(f"  {program.entry.name} {program.entry.settings} {done.seconds:.3f} s\n")
    refuse_other_work(job, program.entry, done)
    return done


def refuse_other_work(job: Job, entry: Entry, done: TurnDone) -> None:
    """Refuses a turn in which a program did not do as much as the job says.

    Raises:
        RunFailed: it did not.
    """
    iterations = job.turn.iterations
    wanted = (iterations * job.tokens, iterations * job.steps)
    if (done.tokens, done.steps) != wanted:
        raise RunFailed(
            f"{entry.name} made {done.tokens} tokens and {done.steps} optimiser steps.",
            f"A turn of this job has {wanted[0]} and {wanted[1]}.",
            "Programs can only be compared where they do the same work.",
        )


def log_of(entry: Entry, number: int) -> Path:
    """Returns the file for what a program prints."""
    return Path(entry.assignment["folder"]) / f"{entry.name.replace(' ', '-')}-{number}.log"
