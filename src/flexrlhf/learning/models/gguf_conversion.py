"""GGUF files, converted once into Hugging Face folders in a cache."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flexrlhf.core.atomic_files import atomic_folder
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.foreign_errors import complaining
from flexrlhf.learning.models.gguf_model import gguf_field, gguf_model
from flexrlhf.learning.models.gguf_tokenizer import gguf_tokenizer
from flexrlhf.learning.models.saving import write_model

if TYPE_CHECKING:
    from gguf import GGUFReader

logger = logging.getLogger(__name__)

_CONVERSION: Final = 1
"""Part of a cached folder's name; grows when the same file would be converted differently."""
_KEY_LETTERS: Final = 16


def converted_folder(file: Path) -> Path:
    """Returns the Hugging Face folder of a GGUF file, made on the first call.

    Weights are kept in float32, the numbers that the file's quantised blocks stand for. The folder
    is found by the content of the file, in `FLEXRLHF_CACHE` or else ~/.cache/flexrlhf.

    Raises:
        ConfigError: the file is damaged, or of a kind that cannot be converted faithfully.
    """
    with file.open("rb") as content:
        key = hashlib.file_digest(content, "sha256").hexdigest()[:_KEY_LETTERS]
    folder = _cache() / "gguf" / f"{file.stem}-{key}-{_CONVERSION}"
    if not folder.is_dir():
        logger.info("Converting %s into %s, once.", file, folder)
        with atomic_folder(folder, replace=False) as workplace:
            _convert(file, workplace)
    return folder


def _cache() -> Path:
    chosen = os.environ.get("FLEXRLHF_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "flexrlhf"


def _convert(file: Path, folder: Path) -> None:
    reader = _reader(file)
    _refuse_stretched_positions(file, reader)
    is_byte_level = gguf_field(reader, "tokenizer.ggml.model") == "gpt2"
    pre_tokenizer = gguf_field(reader, "tokenizer.ggml.pre", "unnamed") if is_byte_level else None
    tokenizer = gguf_tokenizer(file, pre_tokenizer)
    write_model(gguf_model(file, reader), tokenizer, folder)


def _reader(file: Path) -> GGUFReader:
    from gguf import GGUFReader

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"{file} is no whole GGUF file: {said}",
            "It must be a GGUF file of version 2 or 3; what stops half-way does not load.",
            "Download the file again.",
        )

    with complaining(complaint):
        return GGUFReader(file)


def _refuse_stretched_positions(file: Path, reader: GGUFReader) -> None:
    """Transformers drops these without a word, and long texts would come out wrong."""
    keys = [key for key in reader.fields if ".rope.scal" in key]
    stretched = [key for key in keys if gguf_field(reader, key) not in ("none", 1.0)]
    stretched += [tensor.name for tensor in reader.tensors if tensor.name.startswith("rope_")]
    if stretched:
        raise ConfigError(
            f"{file} stretches its rotary positions ({stretched[0]}).",
            "Only GGUF files with plain rotary positions are converted.",
            "Use the original Hugging Face folder, whose config.json says how.",
        )
