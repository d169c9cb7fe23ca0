"""Pairs of placements that are compared, and what came of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from placement_jobs import Case, cases
from placement_rows import Measured


@dataclass(frozen=True, slots=True)
class Pair:
    """Two placements of one job; how many times as long does the second take?"""

    name: str
    first: Case
    second: Case
    stage: str | None = None
    """Whose seconds are compared; None: a whole iteration's."""
    is_against_the_paper: bool = False
    """Whether `first` is what the paper argues against, and expected to win here."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of the second by seconds of the first."""

    job: str
    name: str
    what: str
    first_s: float
    second_s: float
    predicted: float
    measured: float
    """Median over the turns."""
    lowest: float
    highest: float
    is_against_the_paper: bool
    others_share: float
    """Part of the machine's processor time that other programs used, at most."""

    @classmethod
    def of(cls, pair: Pair, turns: Sequence[Measured]) -> Ratio:
        """Returns what came of a pair.

        Args:
            pair: of placements.
            turns: first, second, first, second, ...
        """
        firsts, seconds = turns[::2], turns[1::2]
        found = [_seconds(b, pair.stage)[0] / _seconds(a, pair.stage)[0] for a, b in _both(turns)]
        return cls(
            job=pair.first.job,
            name=pair.name,
            what=pair.stage or "iteration",
            first_s=statistics.median(_seconds(each, pair.stage)[0] for each in firsts),
            second_s=statistics.median(_seconds(each, pair.stage)[0] for each in seconds),
            predicted=_seconds(turns[1], pair.stage)[1] / _seconds(turns[0], pair.stage)[1],
            measured=statistics.median(found),
            lowest=min(found),
            highest=max(found),
            is_against_the_paper=pair.is_against_the_paper,
            others_share=max(each.others_share for each in turns),
        )

    def to_json(self) -> Mapping[str, Any]:
        """Returns JSON values."""
        return asdict(self)


def _both(turns: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    return list(zip(turns[::2], turns[1::2], strict=True))


def _seconds(row: Measured, stage: str | None) -> tuple[float, float]:
    """Measured and predicted."""
    return (row.measured_s, row.predicted_s) if stage is None else row.stages[stage]


_CASES: Final = {(case.job, case.workers, case.name): case for case in cases()}


def _two(job: str, name: str) -> Case:
    return _CASES[job, 2, name]


def _against_the_paper() -> tuple[Pair, ...]:
    return tuple(
        Pair(
            "disaggregated in four parts against colocated",
            _two(job, "colocated, ZeRO-1"),
            _two(job, "disaggregated 1+1, 4 parts"),
            is_against_the_paper=True,
        )
        for job in ("ppo", "grpo")
    )


PAIRS: Final = (
    Pair(
        "synchronous against one step off",
        _two("ppo", "disaggregated 1+1, 2 parts, 1 stale"),
        _two("ppo", "disaggregated 1+1, 2 parts"),
    ),
    Pair(
        "reward on one against sharded",
        _two("ppo", "colocated, ZeRO-1"),
        _two("ppo", "reward on one"),
        stage="score",
    ),
    Pair(
        "colocated against interleaved",
        _two("ppo", "interleaved"),
        _two("ppo", "colocated, ZeRO-1"),
        stage="score",
    ),
    Pair(
        "gather per layer and token against disaggregated",
        _two("ppo", "disaggregated 1+1, 1 part"),
        _two("ppo", "ZeRO-3 generation"),
    ),
    *_against_the_paper(),
)
