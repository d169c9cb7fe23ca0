"""Brings one version of a role's weights to this process, from whoever has parts of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from flexrlhf.core.errors import FlexError, WeightMismatch
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.asking import Ask, in_threads
from flexrlhf.learning.weights.catalogue import Offers, tied_once
from flexrlhf.learning.weights.division import Need, buckets
from flexrlhf.learning.weights.pieces import Piece
from flexrlhf.learning.weights.sharing import Sharing, share_out
from flexrlhf.learning.weights.staging import Staged, StagedPiece
from flexrlhf.learning.weights.survey import Survey
from flexrlhf.learning.weights.transfer import BUCKET_BYTES, Fetched, Transfer

logger = logging.getLogger(__name__)


def pull(
    role: str,
    version: int | None,
    targets: Mapping[str, Shard],
    sources: Sequence[str],
    ask: Ask,
    *,
    sharing: Sharing | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Staged:
    """Fetches what the targets need of one version, cut anew from however the sources hold it.

    Nothing is installed. A source that fails is left out, and what it owed is taken from others
    that hold it. Of processes that share, those that have installed the version are sources
    themselves; the others each take a part from the sources, and give it to each other. What a
    peer does not give in time comes from the sources after all.

    Args:
        role: whose weights are wanted.
        version: which; None for the newest of which the sources have all that is needed, so that
            versions in between are skipped.
        targets: this process's shards by name.
        sources: addresses, first those to prefer where load does not decide; unlike for each of
            several processes that pull at once.
        ask: how to ask one of them. It is called from several threads.
        sharing: the processes that take the same version; its relay is ended by whoever installs.
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
    behind: list[str] = []
    if sharing is not None:
        behind = survey.add_peers(sharing.name, sharing.peers, sharing.ask)
    chosen, needs = survey.choose(once)
    transfer = Transfer(role, chosen, survey, ask, bucket_bytes)
    pieces = (
        transfer.fetch_all(needs)
        if sharing is None
        else _fetch_shared(transfer, needs, sharing, sharing.wanted(behind))
    )
    return Staged(role, chosen, once, pieces, pull_s=time.monotonic() - start_s)


def _fetch_shared(
    transfer: Transfer, needs: Sequence[Need], sharing: Sharing, wanted: Mapping[str, Offers]
) -> list[StagedPiece]:
    """Fetches a part first-hand, for others to have, and beside it the rest from them."""
    first_hand, relayed = share_out(needs, wanted, sharing.own, bucket_bytes=transfer.bucket_bytes)
    relay, name, version = sharing.relay, sharing.name, transfer.version
    relay.begin(name, version, [Piece(need.name, need.box) for need in first_hand])

    def take_own() -> Fetched:
        try:
            return Fetched(transfer.fetch_all(first_hand, partial(relay.add, name, version)))
        except BaseException:
            relay.end(name, version)  # else peers wait for what will not come
            raise

    peers = [peer for peer in wanted if relayed[peer]]
    calls = [take_own, *(partial(_fetch_relayed, transfer, sharing, p, relayed[p]) for p in peers)]
    results = in_threads(lambda call: call(), calls)
    pieces = [piece for result in results for piece in result.pieces]
    return pieces + transfer.fetch_all([need for result in results for need in result.owed])


def _fetch_relayed(
    transfer: Transfer, sharing: Sharing, peer: str, blocks: Sequence[Need]
) -> Fetched:
    """Fetches what a peer takes first-hand, up to its first failure."""
    pieces: list[StagedPiece] = []
    num_fetched = 0
    for bucket in buckets(blocks, transfer.bucket_bytes):
        try:
            pieces += transfer.fetch_blocks(peer, bucket, sharing)
        except WeightMismatch:
            raise
        except FlexError as error:
            logger.info("%s gives no more of %s: %s", peer, sharing.name, error.wrong)
            return Fetched(pieces, list(blocks[num_fetched:]), error)
        num_fetched += len(bucket)
    return Fetched(pieces)
