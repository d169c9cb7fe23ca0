"""How long a piece of work takes: the median of several turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

_LEAST_TURNS: Final = 5
_MOST_TURNS: Final = 200

Work = Callable[[], object]


def nothing() -> None:
    """Prepares nothing."""


def median_s(work: Work, *, budget_s: float = 0.5, before: Work = nothing) -> float:
    """Returns the median seconds of `work`; see `medians_s`."""
    return medians_s([work], budget_s=budget_s, before=before)[0]


def medians_s(
    works: Sequence[Work], *, budget_s: float = 0.5, before: Work = nothing
) -> list[float]:
    """Returns the median seconds of several pieces of work, done in turns.

    In turns, so that a machine that slows down for a while does so for all of them: differences
    between them are what is wanted. One turn of each goes before, uncounted.

    Args:
        works: the pieces.
        budget_s: seconds for all of them together; at least five turns are made.
        before: done before each piece, uncounted.
    """
    taken: list[list[float]] = [[] for _ in works]
    end_s = time.perf_counter() + budget_s
    for turn in range(-1, _MOST_TURNS):
        if turn >= _LEAST_TURNS and time.perf_counter() > end_s:
            break
        for times, work in zip(taken, works, strict=True):
            before()
            seconds = seconds_of(work)
            if turn >= 0:
                times.append(seconds)
    return [statistics.median(times) for times in taken]


def seconds_of(work: Work) -> float:
    """Returns the seconds of one turn, what a GPU does in it included."""
    _wait()
    start_s = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start_s


def _wait() -> None:
    """Waits for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
