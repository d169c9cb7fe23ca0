"""To what each moment of a track is put down, where spans overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, get_args

from flexrlhf.core.timeline.span import Span

Share = Literal["generate", "score", "train", "communication", "sync", "bubble"]
SHARES: Final[tuple[Share, ...]] = get_args(Share)
COMPUTE: Final[frozenset[Share]] = frozenset({"generate", "score", "train"})

_PRECEDENCE: Final[tuple[Share, ...]] = ("train", "score", "generate", "sync", "communication")
"""Compute hides movement, so that communication and sync count only where they are exposed."""


def stage_of(span: Span) -> Share:
    """Returns the stage that a span adds to: `advantage` is scoring, moving weights is sync."""
    if span.transfer == "weights":
        return "sync"
    return "score" if span.stage == "advantage" else span.stage


def share_of(span: Span) -> Share:
    """Returns the share of device time that a span adds to."""
    stage = stage_of(span)
    return stage if span.transfer is None or stage == "sync" else "communication"


def occupancy(spans: Iterable[Span], start_s: float, end_s: float) -> dict[Share, float]:
    """Returns the seconds of one track between `start_s` and `end_s` per share.

    Each moment counts once: for the first of train, score, generate, sync and communication that
    goes on in it, else for the bubble. The values add up to `end_s - start_s`.
    """
    changes: list[tuple[float, Share, int]] = []
    for span in spans:
        start, end = max(span.start_s, start_s), min(span.end_s, end_s)
        if start < end:
            share = share_of(span)
            changes.append((start, share, 1))
            changes.append((end, share, -1))
    changes.sort(key=lambda change: change[0])
    seconds = dict.fromkeys(SHARES, 0.0)
    active: Counter[Share] = Counter()
    moment = start_s
    for time_s, share, step in changes:
        seconds[_foremost(active)] += time_s - moment
        active[share] += step
        moment = time_s
    seconds["bubble"] += end_s - moment
    return seconds


def union_s(spans: Iterable[Span]) -> float:
    """Returns the seconds in which at least one of `spans` goes on."""
    total = 0.0
    covered_to = float("-inf")
    for span in sorted(spans, key=lambda span: span.start_s):
        total += max(0.0, span.end_s - max(span.start_s, covered_to))
        covered_to = max(covered_to, span.end_s)
    return total


def _foremost(active: Counter[Share]) -> Share:
    for share in _PRECEDENCE:
        if active[share] > 0:
            return share
    return "bubble"
