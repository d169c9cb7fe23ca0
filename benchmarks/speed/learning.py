"""What programs learn: reward curves of the same job, compared by a rule stated beforehand.

Two programs learn alike if, over the whole curve and over its last third, the difference of their
mean rewards is within the noise of their runs (its 95 % interval by Welch holds 0) while that noise
is small enough to show a difference that matters (half the interval is at most the job's
`resolution`), and if our mean lies within the least and the most of their runs in at least half of
all blocks of iterations. Of programs that are the same about 1 in 15 fails by chance. The rule must
tell us from ourselves at half the learning rate; else it could not fail, and nothing is known.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from contest import log_of, refuse_other_work
from contestant import Contestant, Entry
from entries import seeded_entries
from jobs import Reinforcing
from material import make_material
from welch import difference

Row = Mapping[str, Any]
Curves = Sequence[Sequence[float]]

SLOWED: Final = 2.0
"""Divides our learning rate in the runs that the rule must tell apart."""
BLOCK: Final = 10
"""Iterations whose mean is one point of a band."""
LEAST_INSIDE: Final = 0.5
"""Share of blocks in which our mean must lie within the other program's runs. Of two programs that
are the same, with 5 runs each, the mean of one lies outside the runs of the other in one block of
7, and blocks are not independent."""


def learn(
    name: str, job: Reinforcing, folders: tuple[Path, Path, Path], facts: Mapping[str, Any]
) -> Iterator[Row]:
    """Yields a row for each peer of a job with a curve.

    Args:
        name: of the job.
        job: as it is timed; what is run is `job.learning()`.
        folders: of what jobs read, of wheels, and of peers' environments.
        facts: when and with which commit.

    Raises:
        RunFailed: a program ended, was late, or did other work than the job's.
    """
    cache, wheels, peers = folders
    assert job.curve is not None, "only jobs with a curve are asked for it"
    wanted, slowed = job.learning(), job.learning(slowed=SLOWED)
    ours, *others = seeded_entries(wanted, make_material(wanted, cache, wheels), peers)
    slow, *_ = seeded_entries(slowed, make_material(slowed, cache, wheels), peers)
    planned = [ours, slow, *others]
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting = [[pool.submit(_learned, wanted, entry) for entry in each] for each in planned]
        try:
            runs = [[run.result() for run in each] for each in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    mine, slow_mine, *theirs = ([list(run.first.rewards) for run in group] for group in runs)
    for peer, curves, group in zip(job.peers, theirs, runs[2:], strict=True):
        yield {
            "job": name,
            "peer": peer.name,
            "curve": job.curve.model_dump(),
            "ours": mine,
            "theirs": curves,
            "ours_slowed": slow_mine,
            "verdict": compared(mine, curves, job.curve.resolution),
            "verdict_slowed": compared(slow_mine, curves, job.curve.resolution),
            "versions": {"ours": runs[0][0].versions, "theirs": group[0].versions},
            **facts,
        }


def compared(ours: Curves, theirs: Curves, resolution: float) -> dict[str, Any]:
    """Returns what the rule says of two programs' curves.

    Args:
        ours: mean reward of each iteration, of each run.
        theirs: the same.
        resolution: difference of mean rewards that must be seen if it is there.
    """
    third = len(ours[0]) - len(ours[0]) // 3
    parts = {
        "whole": difference(*([statistics.fmean(run) for run in runs] for runs in (ours, theirs))),
        "last_third": difference(
            *([statistics.fmean(run[third:]) for run in runs] for runs in (ours, theirs))
        ),
    }
    inside = _share_inside(ours, theirs)
    is_sharp = all(part.half_width <= resolution for part in parts.values())
    is_alike = all(part.is_noise for part in parts.values()) and inside >= LEAST_INSIDE
    return {
        **{name: asdict(part) for name, part in parts.items()},
        "inside": inside,
        "result": ("same" if is_sharp else "not known") if is_alike else "different",
    }


def blocks(curve: Sequence[float]) -> list[float]:
    """Returns the means of blocks of iterations; a rest that is shorter is left out."""
    whole = range(0, len(curve) - BLOCK + 1, BLOCK)
    return [statistics.fmean(curve[start : start + BLOCK]) for start in whole]


def _share_inside(ours: Curves, theirs: Curves) -> float:
    """Returns the share of blocks in which our mean lies between their least and most run."""
    mine = [statistics.fmean(values) for values in zip(*map(blocks, ours), strict=True)]
    bands = [(min(values), max(values)) for values in zip(*map(blocks, theirs), strict=True)]
    inside = [low <= value <= high for value, (low, high) in zip(mine, bands, strict=True)]
    return sum(inside) / len(inside)


def _learned(job: Reinforcing, entry: Entry) -> Contestant:
    """Returns a program that has run the whole curve and ended."""
    with closing(Contestant(entry, log_of(entry, entry.settings["seed"]))) as program:
        refuse_other_work(job, entry, program.first)
    first, last = program.first.rewards[0], statistics.fmean(program.first.rewards[-BLOCK:])
    sys.stderr.write(f"  {entry.name} {entry.settings} from {first:.3f} to {last:.3f}\n")
    return program
