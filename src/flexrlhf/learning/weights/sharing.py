"""Which part of a version each of several processes takes first-hand, and who gives it the rest."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.errors import FlexError
from flexrlhf.learning.weights.asking import Ask, in_threads
from flexrlhf.learning.weights.catalogue import Offers, offers_of
from flexrlhf.learning.weights.division import Need, cut
from flexrlhf.learning.weights.relay import WANTED_KEY, Relay

WAIT_S: Final = 60.0
"""The longest that a peer is waited for before its part is taken from those who trained it."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The processes that take every version of some weights at the same time."""

    name: str
    """Under which all of them answer for these weights."""
    own: str
    """Address of this process."""
    peers: Sequence[str]
    """Addresses of the others, the ones to ask first in front."""
    relay: Relay
    ask: Ask
    """How to ask a peer."""
    wait_s: float = WAIT_S

    def wanted(self, peers: Sequence[str]) -> dict[str, Offers]:
        """Returns which parts each of these peers takes; those that do not answer are left out."""

        def read(peer: str) -> Offers | None:
            try:
                rows = self.ask(peer, WANTED_KEY, {"role": self.name}).header["wanted"]
            except FlexError:
                return None
            return offers_of(peer, rows)

        answers = zip(peers, in_threads(read, peers), strict=True)
        return {peer: rows for peer, rows in answers if rows is not None}


def share_out(
    needs: Sequence[Need], wanted: Mapping[str, Offers], own: str, *, bucket_bytes: int
) -> tuple[list[Need], dict[str, list[Need]]]:
    """Returns the blocks that this process takes first-hand, and those that each peer does.

    All processes that want the same block of a weight come to the same division of it, without
    asking each other, from who they are and from the weight's name.

    Args:
        needs: of this process, not cut yet.
        wanted: what each peer takes.
        own: address of this process.
        bucket_bytes: most bytes of a block.
    """
    first_hand: list[Need] = []
    relayed: dict[str, list[Need]] = {peer: [] for peer in wanted}
    for need in needs:
        takers = sorted([own, *(peer for peer, rows in wanted.items() if _wants(rows, need))])
        turn = zlib.crc32(need.name.encode())
        blocks = cut([need], num_sources=len(takers), bucket_bytes=bucket_bytes)
        for place, block in enumerate(blocks, start=turn):
            taker = takers[place % len(takers)]
            (first_hand if taker == own else relayed[taker]).append(block)
    return first_hand, relayed


def _wants(wanted: Offers, need: Need) -> bool:
    return any(
        row.box == need.target.box and row.shape == need.target.shape
        for row in wanted.get(need.name, ())
    )
