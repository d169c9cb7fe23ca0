"""A prompt and the answers to it, read from a row in any of TRL's forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from flexrlhf.core.errors import DataError
from flexrlhf.core.names import TooLong
from flexrlhf.learning.data.conversation import (
    ChatFormat,
    Messages,
    as_messages,
    is_text_or_messages,
    render_answers,
)
from flexrlhf.learning.data.row_files import Row
from flexrlhf.learning.data.tokens import (
    NumberedItem,
    encode_answer,
    encode_beginnings,
    keep_short,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SequenceForm:
    """How rows that hold answers become sequences."""

    max_tokens: int
    """Longest sequence allowed, prompt and answer together."""
    too_long: TooLong = "error"
    """What becomes of a row with a longer one."""
    chat: ChatFormat = field(default_factory=ChatFormat)

    def kept(
        self, items: Sequence[NumberedItem], num_tokens: Callable[[NumberedItem], int]
    ) -> list[NumberedItem]:
        """Returns the items that are short enough.

        Raises:
            DataError: one is too long and may not be left out, or none is left.
        """
        return keep_short(
            items,
            num_tokens,
            limit=self.max_tokens,
            setting="data.max_tokens",
            too_long=self.too_long,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """The tokens of a prompt and of each answer, without the prompt but with an end token.

    They are cut apart as text: a policy, too, goes on from the tokens of the prompt alone.
    """

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


def read_exchange(
    row: Row,
    answer_columns: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    index: int,
) -> Exchange:
    """Returns the tokens of column `prompt` and of the answers to it.

    Texts may be plain or lists of messages. Without a prompt, or when the answers are whole
    conversations, the prompt is what the answers have in common at their beginning.

    Raises:
        DataError: a column is missing or malformed, or the chat template does not fit.
    """
    columns = [*answer_columns, *(["prompt"] if row.get("prompt") is not None else [])]
    for name in columns:
        _check(row, name, index)
    prompt, answers = row.get("prompt"), [row[name] for name in answer_columns]
    if not chat_format.wants_chat([row[name] for name in columns], index):
        return _plain(prompt, answers, tokenizer)
    turns = [as_messages(answer, "assistant", index) for answer in answers]
    if turns[0][0]["role"] == "assistant":
        messages = as_messages(prompt, "user", index) if prompt is not None else []
    else:
        messages, turns = _split_conversations(turns)
    return encode_conversation(messages, turns, tokenizer, chat_format, index)


def encode_conversation(
    prompt: Messages,
    answers: Sequence[Messages],
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    index: int,
) -> Exchange:
    """Returns the tokens of a conversation and of each way in which it goes on.

    Raises:
        DataError: there is no prompt, or an answer is not the assistant's.
    """
    if not prompt or any(answer[-1]["role"] != "assistant" for answer in answers):
        raise DataError(
            f"Row {index} is no prompt with an answer.",
            "A conversation begins with a prompt and ends with a message of role assistant.",
            "Repair the row, or add column 'prompt'.",
        )
    begin, texts = render_answers(tokenizer, chat_format.with_system(prompt), answers, index)
    return Exchange(
        tuple(encode_beginnings(tokenizer, [begin], are_rendered=True)[0]),
        tuple(tuple(encode_answer(tokenizer, text, in_chat=True)) for text in texts),
    )


def _plain(
    prompt: str | None, answers: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> Exchange:
    if prompt is None:
        prompt = _common_words(answers)
        answers = [answer[len(prompt) :] for answer in answers]
    return Exchange(
        tuple(encode_beginnings(tokenizer, [prompt], are_rendered=False)[0]),
        tuple(tuple(encode_answer(tokenizer, answer, in_chat=False)) for answer in answers),
    )


def _common_words(texts: Sequence[str]) -> str:
    """Returns the words that all texts begin with; the space after them is not among them."""
    common = texts[0][: _num_common(texts)]
    return common[: max(common.rfind(" "), common.rfind("\n"), 0)]


def _split_conversations(conversations: Sequence[Messages]) -> tuple[Messages, list[Messages]]:
    """Returns the messages that all conversations begin with, and the rest of each."""
    begins = [conversation[:-1] for conversation in conversations]
    num_common = _num_common(begins)
    return begins[0][:num_common], [conversation[num_common:] for conversation in conversations]


def _num_common(sequences: Sequence[Sequence[Any]]) -> int:
    """Returns how many items all sequences have in common at their beginning."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda items: all(x == items[0] for x in items), columns))


def _check(row: Row, column: str, index: int) -> None:
    if is_text_or_messages(row.get(column)):
        return
    raise DataError(
        f"Row {index}: column {column!r} "
        + (f"holds {str(row[column])[:80]!r}." if column in row else "is missing."),
        f"It holds a text or a list of messages; the row has {', '.join(row)}.",
        "Repair or rename the column.",
    )
