"""Which part of which weight to take from whom: nothing twice, the load spread over sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from flexrlhf.core.errors import ShapeError
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.catalogue import Offer, Offers
from flexrlhf.learning.weights.pieces import Piece

_MIN_CUT_BYTES: Final = 1 << 20
"""Smaller pieces are not cut only to spread them over more sources."""
_MAX_PIECES: Final = 4096
"""In one bucket, so that no request grows large however small the pieces are."""


@dataclass(frozen=True, slots=True)
class Need:
    """A block of a target that is missing, and who could give some of it."""

    target: Shard
    name: str
    """Of the tied names one that the sources know."""
    box: Box
    offers: tuple[Offer, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the block in the widest type in which it is offered."""
        itemsize = max((offer.dtype.itemsize for offer in self.offers), default=0)
        return itemsize * self.box.num_elements


@dataclass(frozen=True, slots=True)
class Order:
    """A block that one source will be asked for."""

    need: Need
    offer: Offer

    @property
    def piece(self) -> Piece:
        """What is asked for."""
        return Piece(self.need.name, self.need.box)

    @property
    def num_bytes(self) -> int:
        """Bytes that will come."""
        return self.offer.dtype.itemsize * self.need.box.num_elements


Asked = TypeVar("Asked", Need, Order)


def needs_of(targets: Mapping[str, Shard], offers: Offers) -> tuple[list[Need], list[str]]:
    """Returns what the targets need, and the names that nobody offers.

    A target with several names is needed once; where sources hold these names as weights of their
    own, it is needed once for each, so that a difference between them is found.

    Args:
        targets: each tensor once, with its tied names.
        offers: of one version.

    Raises:
        ShapeError: a weight has another shape at a source.
    """
    needs: list[Need] = []
    absent: list[str] = []
    for first, target in targets.items():
        covered: set[tuple[str, str]] = set()
        for name in (first, *target.tied):
            rows = offers.get(name, [])
            weights = {(offer.source, offer.weight) for offer in rows}
            if weights - covered and target.box.num_elements:
                needs.append(Need(target, name, target.box, _usable(name, target, rows)))
            covered |= weights
        if not covered:
            absent.append(first)
    return needs, absent


def _usable(name: str, target: Shard, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Returns the offers that all give the target the same numbers.

    Some source may hold a version in a narrower type than the one that trained it. Only the widest
    type is as it was trained; the target's own type is what the widest would become.
    """
    for offer in offers:
        if offer.shape != target.shape:
            raise ShapeError(
                f"{name!r} has shape {offer.shape} at {offer.source}.",
                f"Here it has shape {target.shape}.",
                "Weights move between models of one architecture only.",
            )
    widest = max(offers, key=lambda offer: offer.dtype.itemsize).dtype
    return tuple(offer for offer in offers if offer.dtype in (widest, target.tensor.dtype))


def cut(needs: Sequence[Need], *, num_sources: int, bucket_bytes: int) -> list[Need]:
    """Cuts needs so that each fits into a bucket, and that large ones can be shared out."""
    fair_bytes = sum(need.num_bytes for need in needs) // max(1, num_sources)
    most_bytes = min(bucket_bytes, max(_MIN_CUT_BYTES, fair_bytes))
    return [
        replace(need, box=box)
        for need in needs
        for box in need.box.pieces(
            max(1, most_bytes * need.box.num_elements // max(1, need.num_bytes))
        )
    ]


def divide(needs: Iterable[Need], alive: Collection[str]) -> tuple[list[Order], list[Need]]:
    """Gives every need to sources that are alive, and returns what none of them has.

    Largest first; whoever has most of a need gives it, and of several the one with the least to
    give, and of these the one that was named first.
    """
    orders: list[Order] = []
    uncovered: list[Need] = []
    load_bytes = dict.fromkeys(alive, 0)
    for need in sorted(needs, key=lambda need: -need.num_bytes):
        missing = [need.box]
        while missing:
            box = missing.pop()
            choices = [
                (-common.num_elements, load_bytes[offer.source], index, common)
                for index, offer in enumerate(need.offers)
                if offer.source in load_bytes and (common := box.overlap(offer.box))
            ]
            if not choices:
                uncovered.append(replace(need, box=box))
                continue
            *_, index, common = min(choices, key=lambda choice: choice[:3])
            order = Order(replace(need, box=common), need.offers[index])
            load_bytes[order.offer.source] += order.num_bytes
            orders.append(order)
            missing += box.minus(common)
    return orders, uncovered


def buckets(orders: Sequence[Asked], bucket_bytes: int) -> list[list[Asked]]:
    """Cuts what one source is asked for into requests, in order."""
    cut_orders: list[list[Asked]] = []
    room = 0
    for order in orders:
        if not cut_orders or order.num_bytes > room or len(cut_orders[-1]) >= _MAX_PIECES:
            cut_orders.append([])
            room = bucket_bytes
        cut_orders[-1].append(order)
        room -= order.num_bytes
    return cut_orders
