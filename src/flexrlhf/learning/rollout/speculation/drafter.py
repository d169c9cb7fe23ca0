"""What speculation asks of a decoder and of whoever proposes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from flexrlhf.learning.rollout.decoding import Decoder
from flexrlhf.learning.rollout.waves import Wave


@runtime_checkable
class RunDecoder(Decoder, Protocol):
    """A decoder whose rows take several tokens at a time, and give some back."""

    def extend(self, tokens_N: Tensor, counts_B: Tensor) -> Tensor:
        """Appends a run of tokens to each row.

        Args:
            tokens_N: int64, the runs one after the other, on any device.
            counts_B: int64, tokens of each row's run, on the CPU; may be 0.

        Returns:
            The logits [N, V] behind each of the tokens.
        """
        ...

    def shorten(self, counts_B: Tensor) -> None:
        """Forgets the last so many tokens of each row; int64, on the CPU."""
        ...


class Drafter(Protocol):
    """Proposes how rows go on. It knows them in the decoder's order."""

    def begin(self, wave: Wave) -> None:
        """Adds the wave's answers behind the present rows."""
        ...

    def append(self, tokens: Sequence[Sequence[int]]) -> None:
        """Hears what was drawn for each row since the last time."""
        ...

    def propose(self, most: Sequence[int]) -> list[list[int]]:
        """Returns tokens that may come next in each row, at most `most[row]`."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone."""
        ...
