"""What one transfer of weights has moved, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Receipt:
    """One role's weights of one version, installed in one process."""

    role: str
    version: int
    bytes_by_source: Mapping[str, int]
    num_weights: int
    """Tensors that were installed, tied ones once."""
    num_tied_names: int
    """Further names of these tensors, installed and checked with them."""
    pull_s: float
    install_s: float
    source_checksum: int
    """Of the bytes that the sources read, as they say."""
    installed_checksum: int
    """Of the same bytes read back from the installed tensors."""

    @property
    def num_bytes(self) -> int:
        """Bytes that were moved."""
        return sum(self.bytes_by_source.values())

    @property
    def seconds(self) -> float:
        """Seconds of work, without what lay between pulling and installing."""
        return self.pull_s + self.install_s

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, bytes and seconds as JSON values."""
        return asdict(self) | {"num_bytes": self.num_bytes, "seconds": self.seconds}
