"""Preference data sets: a prompt, the answer that was chosen, and the one that was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexrlhf.learning.data.exchanges import SequenceForm, read_exchange
from flexrlhf.learning.data.row_files import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt; both sequences begin with it and end with an end token."""

    index: int
    """Row in the data set."""
    chosen_tokens: tuple[int, ...]
    rejected_tokens: tuple[int, ...]


def load_preferences(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, form: SequenceForm
) -> list[PreferencePair]:
    """Returns the rows' pairs, tokenised by the reward model's tokenizer.

    A row has columns `chosen` and `rejected`, texts or lists of messages, and `prompt`; without
    `prompt`, both begin with it.

    Raises:
        DataError: a column is missing, a row is too long or malformed, or a conversation meets a
            tokenizer without a chat template.
    """
    pairs = [_pair(row, tokenizer, form, index) for index, row in enumerate(rows)]
    return form.kept(pairs, lambda pair: max(len(pair.chosen_tokens), len(pair.rejected_tokens)))


def _pair(
    row: Row, tokenizer: PreTrainedTokenizerBase, form: SequenceForm, index: int
) -> PreferencePair:
    exchange = read_exchange(row, ("chosen", "rejected"), tokenizer, form.chat, index)
    return PreferencePair(index, *(exchange.prompt + answer for answer in exchange.answers))
