"""Brings one version of a role's weights to this process, from whoever has parts of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flexrlhf.core.errors import FlexError, WeightMismatch
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.asking import Ask, in_threads
from flexrlhf.learning.weights.catalogue import tied_once
from flexrlhf.learning.weights.division import Need, Order, buckets, cut, divide
from flexrlhf.learning.weights.pieces import PIECES_KEY, unpacked
from flexrlhf.learning.weights.staging import Staged, StagedPiece
from flexrlhf.learning.weights.survey import Survey

BUCKET_BYTES: Final = 1 << 26


def pull(
    role: str,
    version: int | None,
    targets: Mapping[str, Shard],
    sources: Sequence[str],
    ask: Ask,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> Staged:
    """Fetches what the targets need of one version, cut anew from however the sources hold it.

    Nothing is installed. A source that fails is left out, and what it owed is taken from others
    that hold it. A process that has installed the version may publish it and be a source itself.

    Args:
        role: whose weights are wanted.
        version: which; None for the newest of which the sources have all that is needed, so that
            versions in between are skipped.
        targets: this process's shards by name.
        sources: addresses, first those to prefer where load does not decide; unlike for each of
            several processes that pull at once.
        ask: how to ask one of them. It is called from several threads.
        bucket_bytes: most bytes of one answer.

    Raises:
        StaleWeights: the sources do not have all of that version.
        ShapeError: a weight has another shape at a source.
        WeightMismatch: what came is not what a source says that it sent.
        FlexError: of the source that failed, a TransferLost if it is gone, where no other has
            what it was asked for.
    """
    start_s = time.monotonic()
    once = tied_once(targets)
    survey = Survey(role, version, sources, ask)
    chosen, needs = survey.choose(once)
    needs = cut(needs, num_sources=len(survey.alive), bucket_bytes=bucket_bytes)
    pieces = _fetch_all(_Transfer(role, chosen, ask, bucket_bytes), survey, needs)
    return Staged(role, chosen, once, pieces, pull_s=time.monotonic() - start_s)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What one source gave of what it was asked for."""

    pieces: list[StagedPiece]
    owed: list[Need] = field(default_factory=list[Need])
    error: FlexError | None = None


def _fetch_all(transfer: _Transfer, survey: Survey, needs: list[Need]) -> list[StagedPiece]:
    """Fetches everything, in as many rounds as sources fail."""
    pieces: list[StagedPiece] = []
    while needs:
        orders, uncovered = divide(needs, survey.alive)
        if uncovered:
            raise survey.incomplete([need.name for need in uncovered])
        by_source: dict[str, list[Order]] = {}
        for order in orders:
            by_source.setdefault(order.offer.source, []).append(order)
        results = in_threads(transfer.fetch_from, list(by_source.values()))
        for source, result in zip(by_source, results, strict=True):
            pieces += result.pieces
            if result.error is not None:
                survey.exclude(source, result.error)
        needs = [need for result in results for need in result.owed]
    return pieces


@dataclass(frozen=True, slots=True)
class _Transfer:
    """How the pieces of one version are fetched."""

    role: str
    version: int
    ask: Ask
    bucket_bytes: int

    def fetch_from(self, orders: list[Order]) -> _Fetched:
        """Fetches from one source, bucket by bucket, up to its first failure."""
        pieces: list[StagedPiece] = []
        for bucket in buckets(orders, self.bucket_bytes):
            try:
                pieces += self._fetch_bucket(bucket)
            except WeightMismatch:
                raise
            except FlexError as error:
                return _Fetched(pieces, [order.need for order in orders[len(pieces) :]], error)
        return _Fetched(pieces)

    def _fetch_bucket(self, bucket: list[Order]) -> list[StagedPiece]:
        source = bucket[0].offer.source
        asked = [order.piece.to_json() for order in bucket]
        query = {"role": self.role, "version": self.version, "pieces": asked}
        answer = self.ask(source, PIECES_KEY, query)
        forms = [(order.offer.dtype, order.need.box.shape) for order in bucket]
        try:
            tensors = unpacked(answer.tensors["data"], forms)
        except ValueError as error:
            raise self._mismatch(source, str(error)) from error
        checksums = answer.header["checksums"]
        staged = [
            StagedPiece(order.piece, order.need.target, source, tensor, number)
            for order, tensor, number in zip(bucket, tensors, checksums, strict=True)
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
