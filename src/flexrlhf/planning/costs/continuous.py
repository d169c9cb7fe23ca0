"""Continuous batching: where an answer ends, the next that waits begins."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps in which the same answers run."""

    steps: float
    rows: int
    generated: float
    """Tokens of the answers before, on average over rows."""
    carried: float
    """The same of the rows that ran before."""
    begun: range
    """Numbers of the answers that begin with its first step."""
    ended: tuple[int, ...]
    """Numbers of the answers that end with its last step."""


def stretches(responses: Sequence[float], at_once: int) -> Iterator[Stretch]:
    """Yields how answers run that begin in order, as many at a time as there is room for.

    Args:
        responses: tokens of each answer.
        at_once: answers that there is room for, at least 1.
    """
    running: list[tuple[float, int]] = []
    """When each ends, and its number."""
    begins: dict[int, float] = {}
    now, num_begun = 0.0, 0
    while running or num_begun < len(responses):
        before, carried = num_begun, _mean_age(now, begins)
        while num_begun < len(responses) and len(running) < at_once:
            heapq.heappush(running, (now + responses[num_begun], num_begun))
            begins[num_begun] = now
            num_begun += 1
        steps = running[0][0] - now
        generated = _mean_age(now, begins)
        rows, now = len(running), running[0][0]
        ended: list[int] = []
        while running and running[0][0] == now:
            ended.append(heapq.heappop(running)[1])
            del begins[ended[-1]]
        numbers = range(before, num_begun)
        yield Stretch(steps, rows, generated, carried, numbers, tuple(sorted(ended)))


def _mean_age(now: float, begins: Mapping[int, float]) -> float:
    return now - sum(begins.values()) / len(begins) if begins else 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """When answers end: their numbers in that order, and the seconds after the start."""

    order: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def last_s(self) -> float:
        """Seconds until all have ended."""
        return self.seconds[-1] if self.seconds else 0.0

    def parts_s(self, counts: Sequence[int]) -> list[float]:
        """Returns the seconds until so many answers more have ended, part by part."""
        taken, last, before_s = 0, 0.0, list[float]()
        for count in counts:
            taken += count
            reached = self.seconds[taken - 1] if taken else 0.0
            before_s.append(reached - last)
            last = reached
        return before_s


def ends(
    responses: Sequence[float],
    at_once: int,
    step_s: Callable[[float, float], float],
    begin_s: Callable[[range], float],
) -> Ends:
    """Returns when answers end that begin in order.

    Args:
        responses: tokens of each answer.
        at_once: answers that there is room for.
        step_s: seconds of a step with so many rows, each of which has generated so many tokens.
        begin_s: seconds in which the answers of these numbers begin.
    """
    order: list[int] = []
    seconds: list[float] = []
    now_s = 0.0
    due = 0.0  # steps of those that went on where others ended, taken with what follows
    for stretch in stretches(responses, at_once):
        steps, begun = stretch.steps, len(stretch.begun)
        if begun:
            if due:
                now_s += due * step_s(stretch.rows - begun, stretch.carried)
                due = 0.0
            now_s += begin_s(stretch.begun)
        # Behind an answer's last token comes no step: only those that go on take one.
        taken = due + max(0.0, steps - 1)
        if taken:
            now_s += taken * step_s(stretch.rows, stretch.generated + (steps - due) / 2)
        order += stretch.ended
        seconds += [now_s] * len(stretch.ended)
        due = min(1.0, steps) if stretch.rows > len(stretch.ended) else 0.0
    return Ends(tuple(order), tuple(seconds))
