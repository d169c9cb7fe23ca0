"""Prompt data sets: rows become tokens that a policy answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flexrlhf.core.errors import DataError, nearest
from flexrlhf.core.names import ChatMode, TooLong
from flexrlhf.learning.data.conversation import (
    ChatFormat,
    Messages,
    as_messages,
    is_text_or_messages,
    render_prompt,
)
from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.data.row_files import Row
from flexrlhf.learning.data.tokens import encode_beginnings, keep_short

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT_COLUMNS: Final = ("prompt", "messages", "input")
"""Where the prompt is looked for: TRL's and verl's name, whole conversations, OpenRLHF's name."""


def load_prompts(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_tokens: int,
    prompt_column: str = "auto",
    system_prompt: str | None = None,
    too_long: TooLong = "error",
    chat: ChatMode = "auto",
) -> list[Prompt]:
    """Returns the rows' prompts, tokenised.

    A prompt is a text or a list of messages; of a whole conversation (column `messages`) it is what
    comes up to the last user's message. The other columns go to the reward functions, and so does
    verl's `reward_model.ground_truth` as `ground_truth`.

    Args:
        rows: of TRL, OpenRLHF or verl.
        tokenizer: the policy's.
        max_prompt_tokens: longest prompt allowed.
        prompt_column: the column with the prompt; `auto` takes the first of `PROMPT_COLUMNS`.
        system_prompt: put before every conversation that has no system message.
        too_long: what becomes of longer prompts.
        chat: `always` makes plain text a user's message too.

    Raises:
        DataError: a column is missing, a prompt is empty, too long or malformed, or a conversation
            meets a tokenizer without a chat template.
    """
    column = _find_column(rows, prompt_column)
    chat_format = ChatFormat(chat, system_prompt)
    conversations = [
        _conversation(row, column, chat_format, index) for index, row in enumerate(rows)
    ]
    texts = [
        str(row[column]) if messages is None else render_prompt(tokenizer, messages, index)
        for index, (row, messages) in enumerate(zip(rows, conversations, strict=True))
    ]
    tokens = _encode(tokenizer, texts, [messages is not None for messages in conversations])
    prompts = [
        Prompt(index, tuple(tokens[index]), texts[index], messages, _reward_columns(row, column))
        for index, (row, messages) in enumerate(zip(rows, conversations, strict=True))
    ]
    return keep_short(
        prompts,
        lambda prompt: len(prompt.tokens),
        limit=max_prompt_tokens,
        setting="data.max_prompt_tokens",
        too_long=too_long,
    )


def _find_column(rows: Sequence[Row], wanted: str) -> str:
    if not rows:
        raise DataError("The data set has no rows.", "At least one is needed.", "Check its path.")
    candidates = PROMPT_COLUMNS if wanted == "auto" else (wanted,)
    for column in candidates:
        if column in rows[0]:
            return column
    raise DataError(
        f"The rows have no column {' or '.join(repr(name) for name in candidates)}.",
        f"They have {', '.join(rows[0])}.",
        "Set data.prompts.prompt_column to the one that holds the prompt."
        if wanted == "auto"
        else nearest(wanted, rows[0]) or "Correct data.prompts.prompt_column.",
    )


def _conversation(row: Row, column: str, chat_format: ChatFormat, index: int) -> Messages | None:
    """Returns the prompt as messages, or None when it is plain text."""
    content = row.get(column)
    if not is_text_or_messages(content):
        raise DataError(
            f"Row {index}: column {column!r} holds {str(content)[:80]!r}.",
            "A prompt is a text, or a list of messages with at least one.",
            "Repair or remove the row.",
        )
    if not chat_format.wants_chat([content], index):
        return None
    messages = as_messages(content, "user", index)
    if column == "messages":
        messages = _up_to_last_user(messages, index)
    return chat_format.with_system(messages)


def _up_to_last_user(messages: Messages, index: int) -> Messages:
    asked = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise DataError(
            f"Row {index}: nobody asks, the roles are"
            f" {', '.join(str(message['role']) for message in messages)}.",
            "A prompt ends with the last message of role user.",
            "Repair or remove the row.",
        )
    return messages[: asked[-1] + 1]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], are_rendered: Sequence[bool]
) -> list[list[int]]:
    """Returns each text's tokens; a rendered text has its special tokens already."""
    tokens: list[list[int]] = [[] for _ in texts]
    for rendered in (False, True):
        places = [index for index, flag in enumerate(are_rendered) if flag == rendered]
        encoded = encode_beginnings(
            tokenizer, [texts[index] for index in places], are_rendered=rendered
        )
        for index, sequence in zip(places, encoded, strict=True):
            tokens[index] = sequence
    for index, sequence in enumerate(tokens):
        if not sequence:
            raise DataError(
                f"Row {index}: the prompt {texts[index]!r} has no tokens.",
                "A policy needs at least one token to go on from.",
                "Repair or remove the row.",
            )
    return tokens


def _reward_columns(row: Row, prompt_column: str) -> dict[str, Any]:
    """Returns the columns that reward functions receive by name."""
    columns = {name: value for name, value in row.items() if name != prompt_column}
    reward_model = row.get("reward_model")
    if isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        columns.setdefault("ground_truth", reward_model["ground_truth"])
    return columns
