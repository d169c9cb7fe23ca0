"""Which stretch of a run stands for all of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_SAME: Final = 1e-9
"""Part of a cycle by which two moments may differ and still be the same."""


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch from one finish of an iteration to a later one."""

    start_s: float
    end_s: float
    first: int
    """First iteration that finishes behind `start_s`."""
    last: int
    """The iteration that finishes at `end_s`."""
    repeats: bool
    """What goes on at the end is what went on at the start, so the run goes on like this for ever.
    False where it is only a mean, warm-up left out as far as possible."""

    @property
    def num_iterations(self) -> int:
        """Iterations that finish in the window."""
        return self.last - self.first + 1


class Running(NamedTuple):
    """Something that goes on at the moment."""

    iteration: int
    name: str
    is_sending: bool
    """It occupies links; False for tasks, and for what is only under way still."""
    rest_s: float
    """Seconds until it ends, or has sent all."""


class StateHistory:
    """Notices when a run comes back to a state in which it has been before.

    A state is what was started, and how long what goes on will still take, told from the iteration
    that has finished last. The scheduler and the links decide by nothing else, so that from two
    equal states the same follows if iterations are alike.

    Args:
        start_iteration: the first one; before it, at 0 s, nothing goes on.
        alike_every: iterations of which the numbers differ by a multiple of this are alike.
    """

    def __init__(self, start_iteration: int, alike_every: int) -> None:
        self._alike_every = alike_every
        self._seen: dict[Hashable, list[tuple[int, float, tuple[float, ...]]]] = {}
        self.find(start_iteration - 1, 0.0, started={}, running=())

    def find(
        self,
        iteration: int,
        now_s: float,
        *,
        started: Mapping[int, Sequence[str]],
        running: Sequence[Running],
    ) -> Window | None:
        """Notes the state in which an iteration finishes.

        Args:
            iteration: the one that finished last.
            now_s: when.
            started: names in the order of starting, per iteration that is not finished.
            running: what goes on, in the order of starting.

        Returns:
            The stretch since the same state; None where it is new.
        """
        state = (
            (iteration + 1) % self._alike_every,
            tuple((number - iteration, tuple(names)) for number, names in started.items()),
            tuple((r.iteration - iteration, r.name, r.is_sending) for r in running),
        )
        rest_s = tuple(r.rest_s for r in running)
        earlier = self._seen.setdefault(state, [])
        for finished, then_s, then_rest_s in reversed(earlier):
            tolerance_s = _SAME * (now_s - then_s)
            if all(abs(a - b) <= tolerance_s for a, b in zip(rest_s, then_rest_s, strict=True)):
                return Window(then_s, now_s, finished + 1, iteration, repeats=True)
        earlier.append((iteration, now_s, rest_s))
        return None


def mean_window(
    finishes_s: Sequence[float], *, start_iteration: int, num_warm_up: int, num_last: int
) -> Window:
    """Returns the finishes of a run without its first and last ones, if some are left between.

    Args:
        finishes_s: when each iteration finished; at least one.
        start_iteration: the number of the first.
        num_warm_up: iterations that may differ because the run has just begun.
        num_last: iterations that may differ because none follows them.
    """
    if num_warm_up + num_last >= len(finishes_s):
        num_warm_up = num_last = 0
    last = len(finishes_s) - 1 - num_last
    return Window(
        start_s=finishes_s[num_warm_up - 1] if num_warm_up else 0.0,
        end_s=finishes_s[last],
        first=start_iteration + num_warm_up,
        last=start_iteration + last,
        repeats=False,
    )
