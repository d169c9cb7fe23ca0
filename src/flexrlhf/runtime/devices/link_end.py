"""One end of a link between two machines, measured by the way that experience and weights take."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import torch

from flexrlhf.learning.transport.fetching import fetch
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.server import ParcelServer

_KEY: Final = "link"
_QUESTIONS: Final = 9
_LEAST_BYTES: Final = 1 << 18
"""A link's buffers take in small parcels at once."""
_MOST_BYTES: Final = 1 << 26
_ENOUGH_S: Final = 0.4
"""A parcel that is so long on its way says how fast the link is."""
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class OneWay:
    """What came from a peer."""

    bytes_per_s: float
    question_s: float
    """Until a peer has answered with next to nothing."""


class LinkEnd:
    """Gives bytes to peers, and measures how fast theirs come.

    Args:
        host: address of this machine; None for this machine only.
        secret: of both ends.
    """

    def __init__(self, host: str | None, secret: str) -> None:
        self._secret = secret
        self._server = ParcelServer(host, secret)
        self._server.offer(_KEY, lambda _, query: _parcel(query["num_bytes"]))
        self.address = self._server.address

    def close(self) -> None:
        """Gives nothing any more."""
        self._server.close()

    def measure(self, peer: str) -> OneWay:
        """Returns how fast parcels come from a peer, in a few seconds on the slowest of links.

        Args:
            peer: address of its end; this one's own for what there is without a link.

        Raises:
            TransferLost: the peer cannot be reached, or 256 KiB take it a minute.
        """
        self._fetch_s(peer, 1)  # opens the connection
        question_s = statistics.median(self._fetch_s(peer, 1) for _ in range(_QUESTIONS))
        size = _LEAST_BYTES
        taken_s = self._fetch_s(peer, size)
        while taken_s < _ENOUGH_S and size < _MOST_BYTES:
            size = min(_MOST_BYTES, size * max(2, min(8, round(_ENOUGH_S / taken_s))))
            taken_s = self._fetch_s(peer, size)
        return OneWay(size / max(1e-9, taken_s - question_s), question_s)

    def _fetch_s(self, peer: str, num_bytes: int) -> float:
        start_s = time.perf_counter()
        fetch(peer, self._secret, _KEY, {"num_bytes": num_bytes}, deadline_s=_DEADLINE_S)
        return time.perf_counter() - start_s


def _parcel(num_bytes: int) -> Parcel:
    return Parcel({}, {"bytes": torch.zeros(num_bytes, dtype=torch.uint8)})
