"""One process's published weights: by reference, and copied only before somebody writes them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flexrlhf.core.errors import StaleWeights, WeightMismatch
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.catalogue import tied_once, to_json
from flexrlhf.learning.weights.pieces import (
    CATALOGUE_KEY,
    PIECES_KEY,
    Piece,
    live_part,
    packed,
    unpacked,
)


@dataclass(frozen=True, slots=True)
class WeightAnswer:
    """What the store answers: JSON, and the bytes of pieces when these were asked for."""

    header: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(slots=True)
class _Version:
    """The shards of one version; live tensors until `writes` is None, then copies."""

    shards: dict[str, Shard]
    first_names: dict[str, str]
    writes: dict[str, int | None] | None
    """How often each live tensor had been written when it was published."""


@dataclass(slots=True)
class _Role:
    """Versions of one role that may still be read."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    versions: dict[int, _Version] = field(default_factory=dict[int, _Version])
    retired: int = -1


class WeightStore:
    """Gives other processes this process's shards of published versions.

    Every version of a role is read, or copied, under the role's lock, so that nobody reads what is
    being written as long as `protect` is called before writing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: dict[str, _Role] = {}

    def publish(self, role: str, version: int, shards: Mapping[str, Shard]) -> None:
        """Lets others read `shards` as a version of a role; nothing is copied or sent.

        A version that was retired already is not kept.

        Raises:
            ValueError: this version is published.
        """
        once = tied_once(shards)
        names = {each: first for first in once for each in (first, *once[first].tied)}
        writes = {name: _num_writes(shard.tensor) for name, shard in once.items()}
        record = self._role(role)
        with record.lock:
            if version in record.versions:
                raise ValueError(f"Version {version} of {role} is published already.")
            if version > record.retired:
                record.versions[version] = _Version(once, names, writes)

    def protect(self, role: str) -> None:
        """Copies what may still be read, so that the live weights of a role may be written.

        Call it before an optimiser's step and before installing other weights. It waits while a
        piece is being read. Only versions that are neither retired nor copied cost anything, and
        versions of the same tensors share one copy. Copies lie on the CPU, from where they are
        sent.

        Raises:
            WeightMismatch: the weights were written since they were published.
        """
        record = self._role(role)
        copies: dict[object, Tensor] = {}
        with record.lock:
            for version, held in record.versions.items():
                if held.writes is not None:
                    _require_unwritten(role, version, held, held.shards)
                    held.shards = {
                        name: _copied(shard, copies) for name, shard in held.shards.items()
                    }
                    held.writes = None

    def retire(self, role: str, version: int) -> None:
        """Lets go of a version and of all before it; who reads them now still gets the piece."""
        record = self._role(role)
        with record.lock:
            record.retired = max(record.retired, version)
            for old in [each for each in record.versions if each <= version]:
                del record.versions[old]

    def versions(self, role: str) -> tuple[int, ...]:
        """Returns the versions that can be read here, oldest first."""
        record = self._role(role)
        with record.lock:
            return tuple(sorted(record.versions))

    def handle(self, key: str, query: Mapping[str, Any]) -> WeightAnswer:
        """Answers the questions of `pull`, from any thread.

        Raises:
            StaleWeights: the version is not here, or no more, or lacks the weight.
            WeightMismatch: the weights were written since they were published.
        """
        if key == CATALOGUE_KEY:
            return self._catalogue(query["role"], query["version"])
        if key == PIECES_KEY:
            pieces = [Piece.from_json(row) for row in query["pieces"]]
            return self._pieces(query["role"], query["version"], pieces)
        raise StaleWeights(f"{key!r} is no question about weights.")

    def _catalogue(self, role: str, version: int | None) -> WeightAnswer:
        record = self._role(role)
        with record.lock:
            asked = record.versions if version is None else {version} & record.versions.keys()
            rows = {str(each): to_json(record.versions[each].shards) for each in asked}
        return WeightAnswer({"versions": rows})

    def _pieces(self, role: str, version: int, pieces: Sequence[Piece]) -> WeightAnswer:
        record = self._role(role)
        with record.lock:
            held = _held(record, role, version)
            names = [_first_name(held, role, piece) for piece in pieces]
            shards = [held.shards[name] for name in names]
            _require_unwritten(role, version, held, names)
            data = _read(pieces, shards) if held.writes is not None else None
        if data is None:  # copies are never written, so others may be read meanwhile
            data = _read(pieces, shards)
        forms = [
            (shard.tensor.dtype, piece.box.shape)
            for piece, shard in zip(pieces, shards, strict=True)
        ]
        parts = zip(pieces, unpacked(data, forms), strict=True)
        return WeightAnswer(
            {"checksums": [piece.checksum(part) for piece, part in parts]}, {"data": data}
        )

    def _role(self, role: str) -> _Role:
        with self._lock:
            return self._roles.setdefault(role, _Role())


def _held(record: _Role, role: str, version: int) -> _Version:
    if version not in record.versions:
        raise StaleWeights(
            f"Version {version} of {role} is not here.",
            f"Here are {', '.join(map(str, sorted(record.versions))) or 'none'}.",
            "Pull the newest version.",
        )
    return record.versions[version]


def _first_name(held: _Version, role: str, piece: Piece) -> str:
    name = held.first_names.get(piece.name)
    if name is None or not held.shards[name].box.contains(piece.box):
        raise StaleWeights(
            f"The part of {piece.name!r} of {role} from {piece.box.start} to {piece.box.stop} is "
            "not here.",
            "Only what the catalogue lists is.",
            "Read the catalogue of this version again.",
        )
    return name


def _read(pieces: Sequence[Piece], shards: Sequence[Shard]) -> Tensor:
    return packed(
        [live_part(shard, piece.box) for piece, shard in zip(pieces, shards, strict=True)]
    )


def _num_writes(tensor: Tensor) -> int | None:
    """Returns how often torch counted a write in place; those through a DTensor it does not."""
    return None if tensor.is_inference() else tensor._version


def _require_unwritten(role: str, version: int, held: _Version, names: Iterable[str]) -> None:
    if held.writes is None:
        return
    for name in names:
        if _num_writes(held.shards[name].tensor) != held.writes[name]:
            raise WeightMismatch(
                f"{name!r} of {role} was written after it was published as version {version}.",
                "A version that others may read does not change.",
                "Protect the role's weights before every write; this is a fault of the program.",
            )


def _copied(shard: Shard, copies: dict[object, Tensor]) -> Shard:
    """Returns the shard with a copy for its tensor, the same one for the same memory."""
    tensor = shard.tensor
    memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if memory not in copies:
        copies[memory] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return Shard(shard.box, shard.shape, copies[memory], shard.tied)
