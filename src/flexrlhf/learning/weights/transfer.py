"""Fetches pieces of one version, and checks that they came as they were sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from flexrlhf.core.errors import FlexError, WeightMismatch
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_bytes import DTYPES
from flexrlhf.learning.weights.asking import Answer, Ask, in_threads
from flexrlhf.learning.weights.division import Need, Order, buckets, cut, divide
from flexrlhf.learning.weights.pieces import PIECES_KEY, Piece, unpacked
from flexrlhf.learning.weights.relay import BLOCKS_KEY
from flexrlhf.learning.weights.sharing import Sharing
from flexrlhf.learning.weights.staging import StagedPiece
from flexrlhf.learning.weights.survey import Survey

BUCKET_BYTES: Final = 1 << 26

Note = Callable[[Sequence[StagedPiece]], None]
"""Is told what has come, from several threads."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one source gave of what it was asked for."""

    pieces: list[StagedPiece]
    owed: list[Need] = field(default_factory=list[Need])
    error: FlexError | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """How the pieces of one version are fetched."""

    role: str
    version: int
    survey: Survey
    ask: Ask
    bucket_bytes: int

    def fetch_all(self, needs: Sequence[Need], note: Note | None = None) -> list[StagedPiece]:
        """Fetches everything from the sources, in as many rounds as sources fail.

        Raises:
            FlexError: of a source that failed, where no other has what it was asked for.
            WeightMismatch: what came is not what a source says that it sent.
        """
        pieces: list[StagedPiece] = []
        needs = cut(needs, num_sources=len(self.survey.alive), bucket_bytes=self.bucket_bytes)
        while needs:
            orders, uncovered = divide(needs, self.survey.alive)
            if uncovered:
                raise self.survey.incomplete([need.name for need in uncovered])
            by_source: dict[str, list[Order]] = {}
            for order in orders:
                by_source.setdefault(order.offer.source, []).append(order)
            fetch = partial(self._fetch_from, note=note)
            results = in_threads(fetch, list(by_source.values()))
            for source, result in zip(by_source, results, strict=True):
                pieces += result.pieces
                if result.error is not None:
                    self.survey.exclude(source, result.error)
            needs = [need for result in results for need in result.owed]
        return pieces

    def fetch_blocks(
        self, peer: str, blocks: Sequence[Need], sharing: Sharing
    ) -> list[StagedPiece]:
        """Fetches blocks that a peer takes first-hand, in the pieces in which it has them.

        Their checksums are those of the process that trained them.

        Raises:
            FlexError: the peer is gone, or does not have them in time.
            WeightMismatch: what came is not that.
        """
        targets = {(need.name, need.box): need.target for need in blocks}
        rows = [Piece(need.name, need.box).to_json() for need in blocks]
        query = {"role": sharing.name, "version": self.version, "blocks": rows}
        answer = sharing.ask(peer, BLOCKS_KEY, {**query, "wait_s": sharing.wait_s})
        pieces = [Piece.from_json(row) for row in answer.header["pieces"]]
        if sum(p.box.num_elements for p in pieces) != sum(n.box.num_elements for n in blocks):
            raise self._mismatch(peer, "it sent other blocks than it was asked for.")
        owners = [
            target
            for piece in pieces
            for (name, box), target in targets.items()
            if name == piece.name and box.contains(piece.box)
        ]
        dtypes = [DTYPES[name] for name in answer.header["dtypes"]]
        return self._checked(peer, pieces, owners, dtypes, answer)

    def _fetch_from(self, orders: list[Order], note: Note | None) -> Fetched:
        """Fetches from one source, bucket by bucket, up to its first failure."""
        pieces: list[StagedPiece] = []
        for bucket in buckets(orders, self.bucket_bytes):
            try:
                came = self._fetch_bucket(bucket)
            except WeightMismatch:
                raise
            except FlexError as error:
                return Fetched(pieces, [order.need for order in orders[len(pieces) :]], error)
            pieces += came
            if note is not None:
                note(came)
        return Fetched(pieces)

    def _fetch_bucket(self, bucket: list[Order]) -> list[StagedPiece]:
        source = bucket[0].offer.source
        pieces = [order.piece for order in bucket]
        query = {
            "role": self.survey.name_at(source),
            "version": self.version,
            "pieces": [piece.to_json() for piece in pieces],
        }
        answer = self.ask(source, PIECES_KEY, query)
        targets = [order.need.target for order in bucket]
        dtypes = [order.offer.dtype for order in bucket]
        return self._checked(source, pieces, targets, dtypes, answer)

    def _checked(
        self,
        source: str,
        pieces: Sequence[Piece],
        targets: Sequence[Shard],
        dtypes: Sequence[torch.dtype],
        answer: Answer,
    ) -> list[StagedPiece]:
        forms = [(dtype, piece.box.shape) for dtype, piece in zip(dtypes, pieces, strict=True)]
        try:
            tensors = unpacked(answer.tensors["data"], forms)
        except ValueError as error:
            raise self._mismatch(source, str(error)) from error
        checksums = answer.header["checksums"]
        staged = [
            StagedPiece(piece, target, source, tensor, number)
            for piece, target, tensor, number in zip(
                pieces, targets, tensors, checksums, strict=True
            )
        ]
        for each in staged:
            if each.piece.checksum(each.tensor) != each.checksum:
                raise self._mismatch(source, f"{each.piece.name!r} has another checksum.")
        return staged

    def _mismatch(self, source: str, why: str) -> WeightMismatch:
        return WeightMismatch(
            f"Version {self.version} of {self.role} did not come from {source} as it was sent: "
            f"{why}",
            "The checksums of both sides are equal.",
            "Nothing was installed. Resume the run, and check the network between the two.",
        )
