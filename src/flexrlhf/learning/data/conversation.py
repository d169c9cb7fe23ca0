"""Conversations: message lists, and their text as the tokenizer's chat template writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from flexrlhf.core.errors import DataError
from flexrlhf.core.names import ChatMode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = list[dict[str, Any]]
_TEMPLATE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What expressions of a template raise that do not suit a conversation."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """When rows become conversations, and what these begin with."""

    mode: ChatMode = "auto"
    """`auto`: rows that hold messages; `always`: also plain text, as a user's message; `never`."""
    system_prompt: str | None = None
    """Put before every conversation that has no system message."""

    def wants_chat(self, contents: Sequence[object], row: int) -> bool:
        """Says whether a row's texts, of which some may be messages, are a conversation.

        Raises:
            DataError: they are one, and may not be; or are none, and a system prompt needs one.
        """
        has_messages = any(not isinstance(content, str) for content in contents)
        if has_messages and self.mode == "never":
            raise DataError(
                f"Row {row} is a conversation, but chat = never.",
                "With never, rows hold plain text.",
                "Set chat to auto.",
            )
        is_chat = has_messages or self.mode == "always"
        if not is_chat and self.system_prompt is not None:
            raise DataError(
                f"Row {row} is plain text, which has no place for the system prompt.",
                "A system prompt needs a conversation.",
                "Set chat to always, or remove system_prompt.",
            )
        return is_chat

    def with_system(self, messages: Messages) -> Messages:
        """Returns the conversation with the system prompt in front, unless it has its own."""
        if self.system_prompt is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": self.system_prompt}, *messages]


def as_messages(content: str | Sequence[Any], role: str, row: int) -> Messages:
    """Returns the messages that `content` holds, or plain text as one message by `role`.

    Raises:
        DataError: a message has no role or no content, or one that is neither text nor parts.
    """
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    for message in content:
        if not isinstance(message, Mapping) or not _is_whole(message):
            raise DataError(
                f"Row {row} has a message without role or content: {str(message)[:80]}.",
                'A message is {"role": "user", "content": "..."}.',
                "Repair the row.",
            )
    # Columnar files fill keys that a message lacks with None, which templates take for a value.
    return [
        {key: value for key, value in message.items() if key == "content" or value is not None}
        for message in content
    ]


def _is_whole(message: Mapping[str, Any]) -> bool:
    """Says whether a template will write what the message means; others write `None` or `5`."""
    content = message.get("content")
    says_something = isinstance(content, str | list) or bool(message.get("tool_calls"))
    return isinstance(message.get("role"), str) and "content" in message and says_something


def is_text_or_messages(value: object) -> TypeGuard[str | list[Any]]:
    """Says whether `value` can be a prompt or an answer."""
    return isinstance(value, str) or (isinstance(value, list) and bool(value))


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: Messages, row: int) -> str:
    """Returns the conversation's text up to where the assistant's answer begins.

    A conversation that ends with an assistant's message is to be continued inside it.

    Raises:
        DataError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    continues = messages[-1]["role"] == "assistant"
    return _render(tokenizer, messages, row, opens_answer=not continues, stays_open=continues)


def render_answers(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, answers: Sequence[Messages], row: int
) -> tuple[str, list[str]]:
    """Returns the text of a prompt and of each answer to it.

    Prompt and answer together are the text that the template writes for the whole conversation.

    Raises:
        DataError: as for `render_prompt`, or the template writes the prompt in another way once an
            answer follows.
    """
    whole = [_render(tokenizer, [*prompt, *answer], row) for answer in answers]
    # Some templates open an answer with words, such as <think>, that a given answer replaces.
    for render in (render_prompt, _render):
        begin = render(tokenizer, prompt, row)
        if all(text.startswith(begin) for text in whole):
            return begin, [text[len(begin) :] for text in whole]
    raise DataError(
        f"Row {row}: the chat template writes the prompt differently when an answer follows.",
        "Then no token belongs to the answer alone.",
        "Use a chat template that only appends, or rows of plain text.",
    )


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    row: int,
    *,
    opens_answer: bool = False,
    stays_open: bool = False,
) -> str:
    """Returns the conversation's text.

    Args:
        tokenizer: has the chat template.
        messages: the conversation.
        row: for error messages.
        opens_answer: whether the beginning of an assistant's message is added.
        stays_open: whether the end of the last message is left out.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise DataError(
            f"Row {row} is a conversation, but the tokenizer has no chat template.",
            "Conversations need a model with a chat template, mostly one called instruct or chat.",
            "Use such a model, add chat_template.jinja to its folder, or give rows of plain text.",
        )
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=opens_answer,
            continue_final_message=stays_open,
        )
    except (TemplateError, *_TEMPLATE_ERRORS) as error:
        raise DataError(
            f"Row {row}: the chat template refuses the conversation: {error}.",
            f"Its roles are {', '.join(str(message['role']) for message in messages)}.",
            "Repair the row, or leave out system_prompt if the model knows no system message.",
        ) from error
    return str(text)
