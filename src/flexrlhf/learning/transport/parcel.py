"""What travels between processes, JSON and tensors, and its form on the wire.

A parcel is written as a mark, the length of a JSON document, the document, and the bytes of its
tensors one after another. The document says type and shape of every tensor, so the reader knows
how much comes before it takes memory for it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from flexrlhf.learning.models.tensor_bytes import (
    DTYPES,
    byte_pieces,
    byte_view,
    checksum,
    dtype_name,
)

MAX_PARCEL_BYTES: Final = 1 << 33
"""Tensors of a larger parcel are refused unless the reader allows more."""
MAX_HEADER_BYTES: Final = 1 << 24

_MARK: Final = b"FXP1"
_PREFIX: Final = struct.Struct("<4sI")
_MAX_DIMS: Final = 16


class MalformedParcel(ValueError):
    """What was read is no parcel, is damaged, or is larger than allowed."""


class ParcelLike(Protocol):
    """Anything with a header and tensors; other rooms answer with values of their own."""

    @property
    def header(self) -> Mapping[str, Any]:
        """JSON values by name."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        ...


@dataclass(frozen=True, slots=True)
class Parcel:
    """JSON values and tensors that belong together."""

    header: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tensors: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def encode(parcel: ParcelLike, *, with_checksum: bool = False) -> Iterator[bytes | memoryview]:
    """Yields a parcel's bytes in pieces; tensors on the CPU are not copied.

    Args:
        parcel: its header must be JSON without NaN or infinities.
        with_checksum: write the CRC-32 of all tensors into the header, at the price of reading
            them twice.

    Raises:
        ValueError: the header is no such JSON or is too large, or a tensor's type is not sent.
    """
    tensors = parcel.tensors
    document = {
        "header": dict(parcel.header),
        "tensors": [
            [name, dtype_name(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()
        ],
        "checksum": _checksum(tensors) if with_checksum else None,
    }
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"A header of {len(text)} bytes exceeds {MAX_HEADER_BYTES}.")
    yield _PREFIX.pack(_MARK, len(text)) + text
    for tensor in tensors.values():
        yield from byte_pieces(tensor)


def decode(fill: Callable[[memoryview], None], *, max_bytes: int = MAX_PARCEL_BYTES) -> Parcel:
    """Reads one parcel; its tensors are new and lie on the CPU.

    Args:
        fill: writes the next bytes into all of the memory it is given.
        max_bytes: most bytes of tensors that are accepted.

    Raises:
        MalformedParcel: what comes is no parcel, is damaged, or too large.
    """
    document = _read_document(fill)
    try:
        announced = _announced(document["tensors"], max_bytes)
        header, expected = dict(document["header"]), document["checksum"]
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedParcel(f"its header is not one of a parcel ({error})") from error
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in announced:
        tensors[name] = torch.empty(shape, dtype=dtype)
        if tensors[name].numel():
            fill(byte_view(tensors[name]))
    if expected is not None and expected != _checksum(tensors):
        raise MalformedParcel("its checksum is not that of the bytes that came")
    return Parcel(header, tensors)


def _read_document(fill: Callable[[memoryview], None]) -> dict[str, Any]:
    prefix = bytearray(_PREFIX.size)
    fill(memoryview(prefix))
    mark, num_bytes = _PREFIX.unpack(prefix)
    if mark != _MARK or num_bytes > MAX_HEADER_BYTES:
        raise MalformedParcel(f"it begins with {bytes(prefix)!r}")
    text = bytearray(num_bytes)
    fill(memoryview(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedParcel(f"its header is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise MalformedParcel("its header is no JSON object")
    return document


def _announced(
    rows: list[list[Any]], max_bytes: int
) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Returns name, type and shape of the tensors to come, once their size is known to be fine."""
    announced: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
    total_bytes = 0
    for name, dtype, shape in rows:
        if len(shape) > _MAX_DIMS or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"shape {shape!r:.80}")
        # Empty dimensions count as one, so that none of the others can be absurd.
        num_bytes = math.prod(max(1, n) for n in shape) * DTYPES[dtype].itemsize
        total_bytes += num_bytes
        if total_bytes > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes of tensors")
        announced.append((str(name), DTYPES[dtype], tuple(shape)))
    return announced


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for tensor in tensors.values():
        total = checksum(tensor, total)
    return total
