"""Tiny tokenizers: words as tokens, with and without a chat template and special tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TOKENS = (
    "<unk> <s> </s> <|start|> <|end|>"
    " you are brief what is two plus four five and user assistant system . ?"
)
VOCABULARY = {token: number for number, token in enumerate(TOKENS.split())}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Returns a maker of tokenizers whose token ids are `VOCABULARY`'s."""

    def make(
        *, chat_template: str | None = None, adds: str = "", eos: str | None = "</s>"
    ) -> PreTrainedTokenizerFast:
        tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if adds:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=adds, special_tokens=[("<s>", 1), ("</s>", 2)]
            )
        special = {} if eos is None else {"eos_token": eos}
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token="<s>",
            unk_token="<unk>",
            additional_special_tokens=["<|start|>", "<|end|>"],
            **special,
        )
        wrapped.chat_template = chat_template
        return wrapped

    return make


@pytest.fixture(scope="session")
def plain_tokenizer(make_tokenizer) -> PreTrainedTokenizerFast:
    """Adds no special tokens and has no chat template."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def chat_tokenizer(make_tokenizer) -> PreTrainedTokenizerFast:
    """Begins plain texts with `<s>`, and has a chat template that writes none."""
    return make_tokenizer(chat_template=CHAT_TEMPLATE, adds="<s> $A")


@pytest.fixture(scope="session")
def ids() -> Callable[[str], tuple[int, ...]]:
    """Returns the token ids of tokens given as one text."""
    return lambda text: tuple(VOCABULARY[token] for token in text.split())
