"""What survives of each placement's speed-up, in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baselines import COLOCATED, DISAGGREGATED, INTERLEAVED_1, INTERLEAVED_2_BEST, OVERLAPPED, Way
from compared import LARGE, SHARED, SMALL, TWO_NODES, Scene, over_fair, scenes_of, speed_up
from gains import (
    PUBLISHED,
    PUBLISHED_INTERLEAVED_1,
    PUBLISHED_INTERLEAVED_2,
    PUBLISHED_SHARED,
    Pairs,
    gain,
)
from markdown_text import paragraph, spread, table
from verdict import TIE, ZERO_3_MODELS
from work import LENGTHS


@dataclass(frozen=True, slots=True)
class _Claim:
    """One placement where the paper shows that it pays."""

    name: str
    where: str
    scenes: Sequence[Scene]
    """At 256 tokens."""
    pairs: Pairs | None
    """None where the paper has no such run."""
    over_fair: Callable[[Scene], float]
    lengths: Sequence[int] = tuple(LENGTHS)


def _over_colocated(way: Way) -> Callable[[Scene], float]:
    return lambda scene: speed_up(scene, way, COLOCATED) or 0.0


_CLAIMS: Final = (
    _Claim(
        "disaggregated",
        "33B, 65B on 32, 128",
        scenes_of(LARGE, 256),
        PUBLISHED,
        lambda scene: over_fair(scene, DISAGGREGATED),
    ),
    _Claim(
        "disaggregated, one round stale",
        "33B, 65B on 32, 128",
        scenes_of(LARGE, 256),
        None,
        lambda scene: over_fair(scene, OVERLAPPED),
    ),
    _Claim(
        "Interleaved 1",
        "7B, 13B on 8, 32",
        scenes_of(SMALL, 256),
        PUBLISHED_INTERLEAVED_1,
        _over_colocated(INTERLEAVED_1),
    ),
    _Claim(
        "Interleaved 2",
        "33B, 65B on 16",
        [scene for scene in scenes_of(TWO_NODES, 256) if scene.model in ZERO_3_MODELS],
        PUBLISHED_INTERLEAVED_2,
        _over_colocated(INTERLEAVED_2_BEST),
    ),
    _Claim(
        "Interleaved 1, shared actor and critic",
        "7B, 13B on 8, 32",
        SHARED,
        PUBLISHED_SHARED,
        _over_colocated(INTERLEAVED_1),
        lengths=(256,),
    ),
)


def survival() -> list[str]:
    """Returns the table and what it shows."""
    header = ("placement", "models and devices", "published", "simulated by the paper's count")
    lengths = (f"over the best fair baseline, {tokens} tokens" for tokens in LENGTHS)
    return [
        "## What survives",
        "",
        *paragraph(
            "The least and the largest speed-up of each placement. By the paper's count each system"
            " has the largest batch that fits it, and scoring is left out; over the best fair"
            " baseline the work is equal. A speed-up survives where it is above 3 % in every case"
            " at every length."
        ),
        *table((*header, *lengths, "survives"), map(_row, _CLAIMS)),
    ]


def _row(claim: _Claim) -> list[str]:
    published = simulated = "-"
    if claim.pairs is not None:
        gains = [gain(claim.pairs, scene) for scene in claim.scenes]
        published = spread([entry.published for entry in gains])
        simulated = spread([entry.predicted for entry in gains])
    by_length = {
        tokens: [claim.over_fair(replace(scene, tokens=tokens)) for scene in claim.scenes]
        for tokens in claim.lengths
    }
    fair = (spread(by_length[t]) if t in by_length else "-" for t in LENGTHS)
    found = survives([value for values in by_length.values() for value in values])
    return [claim.name, claim.where, published, simulated, *fair, f"**{found}**"]


def survives(factors: Sequence[float]) -> str:
    """Returns whether speed-ups over the best fair baseline are any."""
    num_left = sum(factor > 1 + TIE for factor in factors)
    if num_left == len(factors):
        return "yes"
    return f"in {num_left} of {len(factors)} cases" if num_left else "no"
