"""Supervised data sets: prompts with the answer to imitate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.conversation import ChatFormat, as_messages
from flexrlhf.learning.data.exchanges import (
    Exchange,
    SequenceForm,
    encode_conversation,
    read_exchange,
)
from flexrlhf.learning.data.row_files import Row
from flexrlhf.learning.data.tokens import encode_answer, encode_beginnings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """One sequence, prompt and answer, that ends with an end token."""

    index: int
    """Row in the data set."""
    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    """True at the tokens to learn; False at entry 0, which nothing predicts."""


def load_supervised(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, form: SequenceForm
) -> list[SupervisedExample]:
    """Returns the rows' examples, tokenised by the policy's tokenizer.

    A row has `messages`, of which the last assistant's message is learnt; or `prompt` with
    `completion`, which is learnt; or `text`, which is learnt whole.

    Raises:
        DataError: no known columns, a row is too long or malformed, or a conversation meets a
            tokenizer without a chat template.
    """
    examples = [_example(row, tokenizer, form.chat, index) for index, row in enumerate(rows)]
    return form.kept(examples, lambda example: len(example.tokens))


def _example(
    row: Row, tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat, index: int
) -> SupervisedExample:
    if row.get("messages"):
        exchange = _last_answer(row, tokenizer, chat_format, index)
    elif "completion" in row:
        exchange = read_exchange(row, ("completion",), tokenizer, chat_format, index)
    elif row.get("text"):
        exchange = _whole_text(str(row["text"]), tokenizer)
    else:
        raise DataError(
            f"Row {index} has nothing to learn; its columns are {', '.join(row)}.",
            "A row has 'messages', or 'prompt' and 'completion', or 'text'.",
            "Rename the columns, or repair the row.",
        )
    (answer,) = exchange.answers
    mask = [False] * len(exchange.prompt) + [True] * len(answer)
    mask[0] = False
    if not any(mask):
        raise DataError(
            f"Row {index} has nothing to learn: prompt and answer are empty.",
            "Each token is learnt from those before it, so there must be two at least.",
            "Repair or remove the row.",
        )
    return SupervisedExample(index, exchange.prompt + answer, tuple(mask))


def _last_answer(
    row: Row, tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat, index: int
) -> Exchange:
    """Cuts a conversation before its last assistant's message; what follows is left out."""
    chat_format.wants_chat([row["messages"]], index)
    messages = as_messages(row["messages"], "user", index)
    place = max(
        (i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0
    )
    return encode_conversation(
        messages[:place], [messages[place : place + 1]], tokenizer, chat_format, index
    )


def _whole_text(text: str, tokenizer: PreTrainedTokenizerBase) -> Exchange:
    """Takes the begin token, where there is one, for the prompt and all the rest for the answer."""
    answer = encode_answer(tokenizer, text, in_chat=False)
    (begin,) = encode_beginnings(tokenizer, [""], are_rendered=False)
    return Exchange(tuple(begin), (tuple(answer),))
