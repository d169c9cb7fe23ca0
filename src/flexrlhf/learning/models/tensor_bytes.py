"""Tensors as raw bytes, little-endian as supported machines hold them, and their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
"""Element types by the name under which they are sent."""

PIECE_BYTES: Final = 1 << 24
"""Bytes that are brought from a device at a time."""


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of an element type in `DTYPES`.

    Raises:
        ValueError: weights and experience have no such type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"Tensors of {dtype} are not sent; known are {', '.join(DTYPES)}.")
    return name


def byte_view(tensor: Tensor) -> memoryview:
    """Returns the memory of a contiguous tensor on the CPU; writing there writes the tensor."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def byte_pieces(tensor: Tensor, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """Yields the bytes of a tensor on any device, row-major, in pieces.

    A contiguous tensor on the CPU is not copied; of one on another device, one piece at a time is.
    """
    flat = tensor.detach().contiguous().view(-1)
    step = max(1, piece_bytes // flat.element_size())
    for at in range(0, len(flat), step):
        yield byte_view(flat[at : at + step].cpu())


def checksum(tensor: Tensor, start: int = 0) -> int:
    """Returns the CRC-32 of a tensor's bytes, continuing from `start`."""
    for piece in byte_pieces(tensor):
        start = zlib.crc32(piece, start)
    return start
