"""Preference data sets: a prompt, the answer that was chosen, and the one that was rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flexrlhf.learning.data.conversation import ChatFormat, ChatMode
from flexrlhf.learning.data.exchanges import read_exchange
from flexrlhf.learning.data.row_files import Row
from flexrlhf.learning.data.tokens import TooLong, keep_short

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt; both sequences begin with it and end with an end token."""

    index: int
    """Row in the data set."""
    prompt_tokens: tuple[int, ...]
    chosen_tokens: tuple[int, ...]
    rejected_tokens: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])


def load_preferences(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int,
    too_long: TooLong = "error",
    chat: ChatMode = "auto",
    system_prompt: str | None = None,
) -> list[PreferencePair]:
    """Returns the rows' pairs, tokenised.

    Args:
        rows: columns `chosen` and `rejected`, texts or lists of messages, and `prompt`; without
            `prompt`, both begin with it.
        tokenizer: the reward model's.
        max_tokens: longest sequence allowed, prompt and answer together.
        too_long: what becomes of longer pairs.
        chat: `always` makes plain texts a user's and an assistant's message.
        system_prompt: put before every conversation that has no system message.

    Raises:
        DataError: a column is missing, a row is too long or malformed, or a conversation meets a
            tokenizer without a chat template.
    """
    chat_format = ChatFormat(chat, system_prompt)
    pairs = [_pair(row, tokenizer, chat_format, index) for index, row in enumerate(rows)]
    return keep_short(
        pairs,
        lambda pair: max(len(pair.chosen_tokens), len(pair.rejected_tokens)),
        limit=max_tokens,
        setting="data.max_tokens",
        too_long=too_long,
    )


def _pair(
    row: Row, tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat, index: int
) -> PreferencePair:
    exchange = read_exchange(row, ("chosen", "rejected"), tokenizer, chat_format, index)
    chosen, rejected = (exchange.prompt + answer for answer in exchange.answers)
    columns = {
        name: value for name, value in row.items() if name not in ("prompt", "chosen", "rejected")
    }
    return PreferencePair(index, exchange.prompt, chosen, rejected, columns)
