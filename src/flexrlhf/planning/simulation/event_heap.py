"""What ends next on the virtual clock."""

from __future__ import annotations

import heapq
from typing import Final

TRANSFER: Final = 0
TASK: Final = 1


class EventHeap:
    """The moments at which what goes on will end, by the number it was started under.

    At equal times transfers end before tasks, so that a group that becomes free then can choose
    among everything that has arrived; among transfers, and among tasks, what was started first ends
    first.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, int]] = []
        self._ends: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def ends(self) -> dict[int, float]:
        """When each started number will end, as far as is known now, in the order of starting."""
        return {number: self._ends[number] for number in sorted(self._ends)}

    def schedule(self, number: int, end_s: float, kind: int) -> None:
        """Lets `number` end at `end_s`, in place of any time given for it before.

        Args:
            number: counts what was started.
            end_s: not before the time of the last `pop`.
            kind: `TRANSFER` or `TASK`.
        """
        self._ends[number] = end_s
        heapq.heappush(self._entries, (end_s, kind, number))

    def pop(self) -> tuple[float, int]:
        """Takes away what ends next; returns when, and its number.

        Raises:
            IndexError: nothing goes on.
        """
        while True:
            end_s, _, number = heapq.heappop(self._entries)
            if self._ends.get(number) == end_s:
                del self._ends[number]
                return end_s, number
