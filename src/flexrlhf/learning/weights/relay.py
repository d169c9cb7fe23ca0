"""Gives on what this process takes of a version first-hand, while that is still coming.

Processes that want the same version at the same time each take another part of it from those who
trained it, and the rest from each other, so that it leaves those once and not once for each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flexrlhf.core.errors import StaleWeights
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_bytes import dtype_name
from flexrlhf.learning.weights.catalogue import tied_once, to_json
from flexrlhf.learning.weights.pieces import PREFIX, Piece, packed
from flexrlhf.learning.weights.staging import StagedPiece
from flexrlhf.learning.weights.store import WeightAnswer

RELAY_PREFIX: Final = f"{PREFIX}/relay"
WANTED_KEY: Final = f"{RELAY_PREFIX}/wanted"
BLOCKS_KEY: Final = f"{RELAY_PREFIX}/blocks"


@dataclass(slots=True)
class _Block:
    """A block that is taken first-hand, in the pieces in which it comes."""

    missing: int
    """Elements that have not come."""
    pieces: list[StagedPiece] = field(default_factory=list[StagedPiece])


@dataclass(frozen=True, slots=True)
class _Taking:
    """One version on its way to this process."""

    version: int
    blocks: Mapping[Piece, _Block]

    def block_of(self, piece: Piece) -> _Block:
        """Returns the block that a piece is a part of."""
        return next(
            block
            for whole, block in self.blocks.items()
            if whole.name == piece.name and whole.box.contains(piece.box)
        )


class Relay:
    """What one process takes first-hand, for all that want it too.

    It waits for nothing but what comes from those who trained it, so that no two processes wait for
    each other.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: dict[str, dict[str, Any]] = {}
        self._taking: dict[str, _Taking] = {}

    def want(self, name: str, targets: Mapping[str, Shard]) -> None:
        """Says which parts this process takes of every version, under the name that peers use."""
        with self._changed:
            self._wanted[name] = to_json(tied_once(targets))

    def begin(self, name: str, version: int, blocks: Iterable[Piece]) -> None:
        """Says which blocks of a version this process takes first-hand, now."""
        taken = {block: _Block(block.box.num_elements) for block in blocks}
        with self._changed:
            self._taking[name] = _Taking(version, taken)
            self._changed.notify_all()

    def add(self, name: str, version: int, pieces: Sequence[StagedPiece]) -> None:
        """Lets others have what has come, each piece a part of one block."""
        with self._changed:
            taking = self._taking[name]
            for staged in pieces if taking.version == version else ():
                block = taking.block_of(staged.piece)
                block.pieces.append(staged)
                block.missing -= staged.piece.box.num_elements
            self._changed.notify_all()

    def end(self, name: str, version: int) -> None:
        """Gives no more of a version, and lets go of it."""
        with self._changed:
            taking = self._taking.get(name)
            if taking is None or taking.version <= version:
                self._taking[name] = _Taking(version, {})
            self._changed.notify_all()

    def handle(self, key: str, query: Mapping[str, Any]) -> WeightAnswer:
        """Answers a peer, from any thread; waits for what is on its way, `wait_s` at most.

        Raises:
            StaleWeights: it does not come here, or not in that time.
        """
        name = query["role"]
        if key == WANTED_KEY:
            with self._changed:
                return WeightAnswer({"wanted": self._wanted.get(name, {})})
        blocks = [Piece.from_json(row) for row in query["blocks"]]
        staged = self._come(name, query["version"], blocks, query["wait_s"])
        header = {
            "pieces": [one.piece.to_json() for one in staged],
            "dtypes": [dtype_name(one.tensor.dtype) for one in staged],
            "checksums": [one.checksum for one in staged],
        }
        return WeightAnswer(header, {"data": packed([one.tensor for one in staged])})

    def _come(
        self, name: str, version: int, blocks: Sequence[Piece], wait_s: float
    ) -> list[StagedPiece]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(name, version, blocks), wait_s)
            taking = self._taking.get(name)
            known = taking.blocks if taking is not None and taking.version == version else {}
            if any(block not in known or known[block].missing for block in blocks):
                raise StaleWeights(
                    f"Parts of version {version} of {name} do not come to this process, or not "
                    f"within {wait_s:g} s.",
                    "Peers give on what they take first-hand, until it is installed.",
                    "Ask those who trained the weights.",
                )
            return [piece for block in blocks for piece in known[block].pieces]

    def _is_settled(self, name: str, version: int, blocks: Sequence[Piece]) -> bool:
        """Whether all is here, or it is known that it will not be."""
        taking = self._taking.get(name)
        if taking is None or taking.version < version:
            return False
        known = taking.blocks if taking.version == version else {}
        return all(not known[block].missing for block in blocks if block in known) or any(
            block not in known for block in blocks
        )
