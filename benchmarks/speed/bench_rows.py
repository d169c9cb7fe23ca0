"""What came of a contest, as rows of docs/benchmarks.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contest import Result
from jobs import Job, Peer

Row = Mapping[str, Any]


def rows_of(
    name: str, job: Job, results: Sequence[Result], facts: Mapping[str, Any]
) -> Iterator[Row]:
    """Yields a row for each peer.

    Args:
        name: of the job.
        job: that was done.
        results: of all programs, ours first.
        facts: when and with which commit.
    """
    ours, *others = results
    for peer, theirs in zip(job.peers, others, strict=True):
        yield _row(name, job, peer, ours, theirs) | dict(facts)


def merged(old: Sequence[Row], new: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Returns new rows and those of jobs that were not run now, in the order of the jobs.

    Args:
        old: rows of earlier runs.
        new: rows of this one.
        names: of all jobs that there are.
    """
    renewed = {row["job"] for row in new}
    kept = [row for row in old if row["job"] not in renewed and row["job"] in names]
    return sorted([*kept, *new], key=lambda row: list(names).index(row["job"]))


def _row(name: str, job: Job, peer: Peer, ours: Result, theirs: Result) -> dict[str, Any]:
    is_rate = job.does == "generate"
    mine, other = (_figures(job, result, is_rate=is_rate) for result in (ours, theirs))
    ratios = [a / b if is_rate else b / a for a, b in zip(mine, other, strict=True)]
    both = {"ours": ours} if peer.program == "limit" else {"ours": ours, "theirs": theirs}
    return {
        "job": name,
        "peer": peer.name,
        "ours": {"median": statistics.median(mine), "runs": mine},
        "theirs": {"median": statistics.median(other), "runs": other},
        "unit": "tokens/s" if is_rate else "s/iteration",
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "goal": peer.goal,
        "settings": {"ours": ours.settings, "theirs": theirs.settings},
        "versions": {"ours": ours.versions, "theirs": theirs.versions},
        "start_up_s": {who: round(result.start_up_s, 2) for who, result in both.items()},
        "peak_bytes": {who: result.peak_bytes for who, result in both.items()},
        "iterations": job.turn.iterations,
        "tokens": job.tokens,
        "steps": job.steps,
    }


def _figures(job: Job, result: Result, *, is_rate: bool) -> list[float]:
    """Returns the figure of each turn in the row's unit."""
    iterations = job.turn.iterations
    if is_rate:
        return [iterations * job.tokens / seconds for seconds in result.seconds]
    return [seconds / iterations for seconds in result.seconds]
