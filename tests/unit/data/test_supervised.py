from __future__ import annotations

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.conversation import ChatFormat
from flexrlhf.learning.data.exchanges import SequenceForm
from flexrlhf.learning.data.supervised import load_supervised

AUTO = ChatFormat()


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def load(row, tokenizer, chat=AUTO):
    (example,) = load_supervised([row], tokenizer, SequenceForm(30, chat=chat))
    return example


def learnt(example):
    return tuple(
        token for token, is_learnt in zip(example.tokens, example.mask, strict=True) if is_learnt
    )


def test_completion_and_end_token_are_learnt(make_tokenizer, ids):
    tokenizer = make_tokenizer(adds="<s> $A")
    example = load({"prompt": "two plus two is", "completion": " four"}, tokenizer)
    assert example.tokens == ids("<s> two plus two is four </s>")
    assert learnt(example) == ids("four </s>")


def test_last_answer_of_a_conversation_is_learnt(chat_tokenizer, ids):
    messages = [user("two"), assistant("four"), user("plus"), assistant("five"), user("and")]
    example = load({"messages": messages}, chat_tokenizer)
    assert example.tokens == ids(
        "<|start|> user two <|end|> <|start|> assistant four <|end|>"
        " <|start|> user plus <|end|> <|start|> assistant five <|end|>"
    )
    assert learnt(example) == ids("five <|end|>")


def test_conversational_prompt_and_completion(chat_tokenizer, ids):
    row = {"prompt": [user("two")], "completion": [assistant("four")]}
    example = load(row, chat_tokenizer)
    assert learnt(example) == ids("four <|end|>")
    assert (
        load({"prompt": "two", "completion": "four"}, chat_tokenizer, ChatFormat("always"))
        == example
    )


@pytest.mark.parametrize("adds", ["", "<s> $A"])
def test_text_is_learnt_but_for_its_first_token(make_tokenizer, ids, adds):
    example = load({"text": "two plus two"}, make_tokenizer(adds=adds))
    whole = ids(("<s> " if adds else "") + "two plus two </s>")
    assert example.tokens == whole
    assert learnt(example) == whole[1:]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "two"}, "its columns are question"),
        ({"text": ""}, "nothing to learn"),
        ({"messages": [user("two")]}, "no prompt with an answer"),
        ({"messages": [assistant("two")]}, "no prompt with an answer"),
        ({"prompt": "two", "completion": None}, "column 'completion' holds 'None'"),
    ],
)
def test_bad_rows_are_refused(chat_tokenizer, row, words):
    with pytest.raises(DataError, match="Row 0") as caught:
        load(row, chat_tokenizer)
    assert words in str(caught.value)


def test_long_rows(plain_tokenizer):
    rows = [{"text": "two plus two"}, {"text": "two"}]
    with pytest.raises(DataError, match=r"Row 0 has 4 tokens, but data\.max_tokens = 3"):
        load_supervised(rows, plain_tokenizer, SequenceForm(3))
    (example,) = load_supervised(rows, plain_tokenizer, SequenceForm(3, "drop"))
    assert example.index == 1


def test_an_end_token_alone_is_nothing_to_learn(plain_tokenizer):
    with pytest.raises(DataError, match="Row 0 has nothing to learn: prompt and answer are empty"):
        load({"prompt": "", "completion": ""}, plain_tokenizer)
