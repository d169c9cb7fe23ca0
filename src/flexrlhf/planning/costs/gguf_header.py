"""The head of a GGUF file: its metadata and the sizes of its tensors, without the gguf package.

Source: docs/gguf.md of ggml, versions 2 and 3 (little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from flexrlhf.core.errors import ConfigError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_NUMBERS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT: Final = 8
_ARRAY: Final = 9
_KEPT_ITEMS: Final = 1024
"""Arrays longer than this are vocabularies; only their length is kept."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says before its weights."""

    metadata: Mapping[str, Any]
    """An array is a list, or the number of its items where there are very many."""
    tensors: Mapping[str, tuple[int, ...]]
    """Sizes by name, the fastest running one first."""


def read_gguf_header(file: Path) -> GgufHeader:
    """Reads the head of a GGUF file.

    Raises:
        ConfigError: the file cannot be read, is no GGUF file, or stops half-way.
    """
    try:
        with file.open("rb") as stream:
            return _header(stream)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror or error}.",
            "It is a GGUF file.",
            "Correct the path.",
        ) from error
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{file} is no whole GGUF file: {error}.",
            "It is a GGUF file of version 2 or 3.",
            "Download the file again.",
        ) from error


def _header(stream: BinaryIO) -> GgufHeader:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = _number(stream, "<I")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}")
    num_tensors, num_keys = _number(stream, "<Q"), _number(stream, "<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = _text(stream)
        metadata[key] = _value(stream, _number(stream, "<I"))
    tensors: dict[str, tuple[int, ...]] = {}
    for _ in range(num_tensors):
        name = _text(stream)
        sizes = tuple(_number(stream, "<Q") for _ in range(_number(stream, "<I")))
        _read(stream, struct.calcsize("<IQ"))  # type and offset
        tensors[name] = sizes
    return GgufHeader(metadata, tensors)


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(stream)
    if kind == _ARRAY:
        return _array(stream)
    if kind not in _NUMBERS:
        raise ValueError(f"it has a value of the unknown type {kind}")
    return _number(stream, _NUMBERS[kind])


def _array(stream: BinaryIO) -> Any:
    kind, num_items = _number(stream, "<I"), _number(stream, "<Q")
    if num_items <= _KEPT_ITEMS:
        return [_value(stream, kind) for _ in range(num_items)]
    if kind in _NUMBERS:
        stream.seek(num_items * struct.calcsize(_NUMBERS[kind]), 1)
    elif kind == _TEXT:
        for _ in range(num_items):
            stream.seek(_number(stream, "<Q"), 1)
    else:
        raise ValueError("it has a long array of arrays")
    return num_items


def _text(stream: BinaryIO) -> str:
    return _read(stream, _number(stream, "<Q")).decode("utf-8", errors="replace")


def _number(stream: BinaryIO, form: str) -> Any:
    return struct.unpack(form, _read(stream, struct.calcsize(form)))[0]


def _read(stream: BinaryIO, num_bytes: int) -> bytes:
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise ValueError("it stops half-way")
    return content
