"""The tokenizer inside a GGUF file, cutting text as the model's vocabulary was trained to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.foreign_errors import complaining

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_DIGIT_BY_DIGIT: Final = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)
"""Every digit apart, then GPT-2's rule. Transformers takes GPT-2's rule alone for these, which cuts
runs of spaces or newlines before a digit otherwise. Source: llama.cpp, llama-vocab.cpp."""
_AS_GPT2: Final = frozenset({"gpt-2", "mpt", "olmo", "jais", "phi-2"})


def gguf_tokenizer(file: Path, pre_tokenizer: str | None) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a GGUF file, special tokens and chat template included.

    Args:
        file: the GGUF file.
        pre_tokenizer: its `tokenizer.ggml.pre`: how text is cut before merges; None where the
            vocabulary is not byte-level.

    Raises:
        ConfigError: the file has no tokenizer, or cuts text in a way unknown here.
    """
    from transformers import AutoTokenizer

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The tokenizer of {file} cannot be read: {said}",
            "A GGUF file carries its vocabulary, merges and special tokens.",
            "Use another GGUF file, or the original Hugging Face folder.",
        )

    with complaining(complaint):
        tokenizer = AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )
    if pre_tokenizer in _DIGIT_BY_DIGIT:
        _cut_digit_by_digit(tokenizer)
    elif pre_tokenizer is not None and pre_tokenizer not in _known_pre_tokenizers():
        raise ConfigError(
            f"{file} cuts text by the rule {pre_tokenizer!r}, which is unknown here.",
            f"Known: {', '.join(sorted(_known_pre_tokenizers()))}.",
            "Use the original Hugging Face folder: another rule would give other tokens.",
        )
    return tokenizer


def _known_pre_tokenizers() -> frozenset[str]:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return _DIGIT_BY_DIGIT | _AS_GPT2 | GGUF_PRE_TOKENIZER_SPLITS.keys()


def _cut_digit_by_digit(tokenizer: PreTrainedTokenizerBase) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    backend = cast("Tokenizer", tokenizer.backend_tokenizer)
    # The stubs of tokenizers say that a pre-tokenizer can be read only.
    backend.pre_tokenizer = Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
