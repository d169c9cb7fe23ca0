"""A whole version beside the live weights, and its installation into them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flexrlhf.core.errors import WeightMismatch
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.tensor_bytes import checksum
from flexrlhf.learning.weights.pieces import Piece, combined, live_part
from flexrlhf.learning.weights.receipt import Receipt


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """A block of a weight as it came, not yet installed."""

    piece: Piece
    target: Shard
    source: str
    tensor: Tensor
    """In the source's type."""
    checksum: int
    """As the source says, and as what came was found to have."""


class Staged:
    """All shards of one version that a process needs, fetched and checked.

    Args:
        role: whose weights these are.
        version: of all pieces.
        targets: where they belong, each tensor once.
        pieces: everything that the targets need.
        pull_s: seconds that the transfer took.
    """

    def __init__(
        self,
        role: str,
        version: int,
        targets: Mapping[str, Shard],
        pieces: Sequence[StagedPiece],
        pull_s: float,
    ) -> None:
        self.role = role
        self.version = version
        self.pull_s = pull_s
        self._targets = dict(targets)
        self._pieces = list(pieces)
        self._is_installed = False

    @property
    def bytes_by_source(self) -> dict[str, int]:
        """Bytes that came from every source that gave some."""
        moved: dict[str, int] = {}
        for staged in self._pieces:
            moved[staged.source] = moved.get(staged.source, 0) + staged.tensor.nbytes
        return moved

    @torch.no_grad()
    def install(self) -> Receipt:
        """Copies the version into the targets' tensors in place, and reads it back.

        Where the targets are published as another version, protect or retire that before. It can
        be done once; the memory of what was staged is then free.

        Raises:
            WeightMismatch: what is installed is not what was sent; the weights are of no version.
            ValueError: it was installed before.
        """
        if self._is_installed:
            raise ValueError(f"Version {self.version} of {self.role} was installed before.")
        self._is_installed = True
        start_s = time.monotonic()
        for staged in self._pieces:
            live_part(staged.target, staged.piece.box).copy_(staged.tensor)
        installed = [self._read_back(staged) for staged in self._pieces]
        receipt = Receipt(
            role=self.role,
            version=self.version,
            bytes_by_source=self.bytes_by_source,
            num_weights=len(self._targets),
            num_tied_names=sum(len(target.tied) for target in self._targets.values()),
            pull_s=self.pull_s,
            install_s=time.monotonic() - start_s,
            source_checksum=combined(staged.checksum for staged in self._pieces),
            installed_checksum=combined(installed),
        )
        self._pieces.clear()
        return receipt

    def _read_back(self, staged: StagedPiece) -> int:
        """Returns the checksum of what is installed, in the type in which it was sent.

        Where the target has another type, its bytes must be those that the staged ones become.
        """
        installed = live_part(staged.target, staged.piece.box)
        if installed.dtype == staged.tensor.dtype:
            found = staged.piece.checksum(installed)
        else:
            is_same = checksum(installed) == checksum(staged.tensor.to(installed.dtype))
            found = staged.piece.checksum(staged.tensor) if is_same else None
        if found != staged.checksum:
            name, box = staged.piece.name, staged.piece.box
            raise WeightMismatch(
                f"{name!r} of {self.role} from {box.start} to {box.stop} is not what "
                f"{staged.source} sent as version {self.version}.",
                "What is installed is what was sent, under every name of a tied weight.",
                "Resume from the last checkpoint. If it happens again, check that both models tie "
                "the same weights, and this machine's memory.",
            )
        return staged.checksum
