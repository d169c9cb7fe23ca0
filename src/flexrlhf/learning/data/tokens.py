"""From text to tokens: where a sequence begins, where an answer ends, how long it may be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from flexrlhf.core.errors import DataError
from flexrlhf.core.names import TooLong

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger(__name__)


class _Numbered(Protocol):
    @property
    def index(self) -> int: ...


NumberedItem = TypeVar("NumberedItem", bound=_Numbered)


def encode_beginnings(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, are_rendered: bool
) -> list[list[int]]:
    """Returns the tokens of texts that begin a sequence.

    Args:
        tokenizer: its begin token, if it has one, is put first.
        texts: what the sequences begin with.
        are_rendered: the texts come from a chat template, which wrote the begin token itself.
    """
    if are_rendered:
        return encode_parts(tokenizer, texts)
    if not texts:
        return []
    sequences = tokenizer(list(texts), verbose=False)["input_ids"]
    plain, closed = encode_parts(tokenizer, ["a"])[0], tokenizer("a")["input_ids"]
    if closed[-1] == tokenizer.eos_token_id and closed[-1:] != plain[-1:]:
        # Some tokenizers close every text, but these go on.
        return [sequence[:-1] for sequence in sequences]
    return sequences


def encode_parts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Returns the tokens of texts as they stand, nothing added at either end."""
    if not texts:
        return []
    return tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def encode_answer(tokenizer: PreTrainedTokenizerBase, text: str, *, in_chat: bool) -> list[int]:
    """Returns the tokens of an answer, up to and with the token that ends it.

    A chat template usually closes the answer with a token of its own and then writes a line break,
    which no policy would generate; the answer ends with that token. Where none closes it, the
    tokenizer's end token does.

    Raises:
        DataError: the tokenizer has no end token.
    """
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise DataError(
            "The tokenizer has no end token.",
            "Answers must end with one, or a model never learns to stop.",
            "Set eos_token in the tokenizer's tokenizer_config.json.",
        )
    ends = {end}
    if in_chat:
        ends |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    whole, stripped = encode_parts(tokenizer, [text, text.rstrip()])
    if stripped and stripped[-1] in ends:
        return stripped
    return [*whole, end]


def keep_short(
    items: Sequence[NumberedItem],
    num_tokens: Callable[[NumberedItem], int],
    *,
    limit: int,
    setting: str,
    too_long: TooLong,
) -> list[NumberedItem]:
    """Returns the items of at most `limit` tokens.

    Args:
        items: each knows its row as `index`.
        num_tokens: the length of an item.
        limit: tokens allowed.
        setting: the config key that holds the limit.
        too_long: `error` refuses a longer item, `drop` leaves it out and says how many were.

    Raises:
        DataError: an item is too long, or none is left.
    """
    longer = [item for item in items if num_tokens(item) > limit]
    longest = max(map(num_tokens, longer), default=0)
    if longer and too_long == "error":
        more = f" {len(longer) - 1} more rows are too long." if longer[1:] else ""
        raise DataError(
            f"Row {longer[0].index} has {num_tokens(longer[0])} tokens, but {setting} = {limit}."
            + more,
            f"The longest row has {longest}; rows are counted from 0.",
            f"Raise {setting}, shorten the rows, or leave them out with data.too_long = drop.",
        )
    if len(longer) == len(items):
        raise DataError(
            f"No row is left: all {len(items)} are longer than {setting} = {limit}.",
            f"The longest has {longest} tokens.",
            f"Raise {setting}.",
        )
    if longer:
        _log.warning("%d of %d rows left out: %s = %d", len(longer), len(items), setting, limit)
    return [item for item in items if num_tokens(item) <= limit]
