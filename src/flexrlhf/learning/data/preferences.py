"""Preference data sets: a prompt, the answer that was chosen, and the one that was rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.exchanges import SequenceForm, read_exchange
from flexrlhf.learning.data.row_files import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """One sequence of a pair, as a batch takes it."""

    sample_id: int
    """Row in the data set."""
    tokens: Tensor
    """int64 [T], prompt and answer."""
    mask: Tensor
    """bool [T], True at the answer's tokens; False at entry 0, which nothing predicts."""
    fields: Mapping[str, Tensor]
    """Numbers per token [T]."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt; both sequences begin with it and end with an end token."""

    index: int
    """Row in the data set."""
    chosen_tokens: tuple[int, ...]
    rejected_tokens: tuple[int, ...]
    num_prompt_tokens: int
    fields: Mapping[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict[str, tuple[Tensor, Tensor]], compare=False
    )
    """What roles said of each token of the chosen and of the rejected sequence."""

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Tokens of the chosen and of the rejected sequence."""
        return len(self.chosen_tokens), len(self.rejected_tokens)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of both answers that something predicts."""
        return sum(length - max(1, self.num_prompt_tokens) for length in self.num_tokens)

    @property
    def answers(self) -> tuple[PairAnswer, PairAnswer]:
        """The chosen and the rejected sequence."""
        chosen, rejected = (
            PairAnswer(
                self.index,
                torch.tensor(tokens),
                torch.arange(len(tokens)) >= max(1, self.num_prompt_tokens),
                {name: values[place] for name, values in self.fields.items()},
            )
            for place, tokens in enumerate((self.chosen_tokens, self.rejected_tokens))
        )
        return chosen, rejected


def load_preferences(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, form: SequenceForm
) -> list[PreferencePair]:
    """Returns the rows' pairs, tokenised by the tokenizer of the role that reads them.

    A row has columns `chosen` and `rejected`, texts or lists of messages, and `prompt`; without
    `prompt`, both begin with it.

    Raises:
        DataError: a column is missing, a row is too long or malformed, its answers are the same, or
            a conversation meets a tokenizer without a chat template.
    """
    pairs = [_pair(row, tokenizer, form, index) for index, row in enumerate(rows)]
    return form.kept(pairs, lambda pair: max(pair.num_tokens))


def _pair(
    row: Row, tokenizer: PreTrainedTokenizerBase, form: SequenceForm, index: int
) -> PreferencePair:
    exchange = read_exchange(row, ("chosen", "rejected"), tokenizer, form.chat, index)
    chosen, rejected = (exchange.prompt + answer for answer in exchange.answers)
    if row["chosen"] == row["rejected"]:
        raise DataError(
            f"Row {index}: 'chosen' and 'rejected' are the same answer.",
            "What makes one better than the other is all that a pair teaches. One of them may be "
            "empty: then it is the end token alone.",
            "Repair or remove the row.",
        )
    return PreferencePair(index, chosen, rejected, len(exchange.prompt))
