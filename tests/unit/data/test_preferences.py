from __future__ import annotations

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.conversation import ChatFormat
from flexrlhf.learning.data.exchanges import SequenceForm, read_exchange
from flexrlhf.learning.data.preferences import load_preferences

AUTO = ChatFormat()


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHAT = "<|start|> user two plus two <|end|> <|start|> assistant"


def load(row, tokenizer, chat=AUTO):
    (pair,) = load_preferences([row], tokenizer, SequenceForm(30, chat=chat))
    return pair


def prompt_of(row, tokenizer):
    return read_exchange(row, ("chosen", "rejected"), tokenizer, ChatFormat(), 0).prompt


def test_plain_columns_end_with_the_end_token(make_tokenizer, ids):
    row = {"prompt": "two plus two is", "chosen": " four .", "rejected": "five"}
    pair = load(row, make_tokenizer(adds="<s> $A"))
    assert pair.chosen_tokens == ids("<s> two plus two is four . </s>")
    assert pair.rejected_tokens == ids("<s> two plus two is five </s>")


def test_end_token_in_the_text_is_not_doubled(plain_tokenizer, ids):
    pair = load({"prompt": "two", "chosen": "four </s>", "rejected": "five"}, plain_tokenizer)
    assert pair.chosen_tokens == ids("two four </s>")


def test_masks_are_true_at_the_answers_alone(plain_tokenizer):
    pair = load({"prompt": "two plus", "chosen": "two four", "rejected": "five"}, plain_tokenizer)
    assert (pair.num_prompt_tokens, pair.num_tokens, pair.num_answer_tokens) == (2, (5, 4), 5)
    chosen, rejected = pair.answers
    assert chosen.mask.tolist() == [False, False, True, True, True]
    assert rejected.mask.tolist() == [False, False, True, True]
    assert tuple(chosen.tokens.tolist()) == pair.chosen_tokens
    assert tuple(rejected.tokens.tolist()) == pair.rejected_tokens


def test_without_a_prompt_the_first_token_is_not_learnt_since_nothing_predicts_it(plain_tokenizer):
    pair = load({"prompt": "", "chosen": "two four", "rejected": "five"}, plain_tokenizer)
    assert [a.mask.tolist() for a in pair.answers] == [[False, True, True], [False, True]]
    assert pair.num_answer_tokens == 3


def test_implicit_prompt_is_what_both_begin_with(plain_tokenizer, ids):
    row = {"chosen": "what is two plus four", "rejected": "what is two plus five"}
    pair = load(row, plain_tokenizer)
    assert prompt_of(row, plain_tokenizer) == ids("what is two plus")  # though "f" is common too
    assert pair.chosen_tokens == ids("what is two plus four </s>")
    assert pair.rejected_tokens == ids("what is two plus five </s>")


@pytest.mark.parametrize(
    "row",
    [
        {
            "prompt": [user("two plus two")],
            "chosen": [assistant("four")],
            "rejected": [assistant("five")],
        },
        {
            "chosen": [user("two plus two"), assistant("four")],
            "rejected": [user("two plus two"), assistant("five")],
        },
        {  # as in ultrafeedback_binarized
            "prompt": "two plus two",
            "chosen": [user("two plus two"), assistant("four")],
            "rejected": [user("two plus two"), assistant("five")],
        },
        {
            "prompt": "two plus two",
            "chosen": [assistant("four")],
            "rejected": [assistant("five")],
        },
        {"prompt": [user("two plus two")], "chosen": "four", "rejected": "five"},
    ],
)
def test_conversations_follow_the_template_up_to_its_end_token(chat_tokenizer, ids, row):
    pair = load(row, chat_tokenizer)
    assert prompt_of(row, chat_tokenizer) == ids(CHAT)
    assert pair.chosen_tokens == ids(CHAT + " four <|end|>")
    assert pair.rejected_tokens == ids(CHAT + " five <|end|>")


def test_chat_always_makes_plain_texts_a_conversation(chat_tokenizer, ids):
    row = {"prompt": "two plus two", "chosen": "four", "rejected": "five"}
    pair = load(row, chat_tokenizer, ChatFormat("always", "you are brief"))
    begin = "<|start|> system you are brief <|end|> " + CHAT
    assert pair.chosen_tokens == ids(begin + " four <|end|>")


def test_template_that_closes_no_answer_gets_the_end_token(make_tokenizer, ids):
    tokenizer = make_tokenizer(
        chat_template="{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    row = {"prompt": "two", "chosen": [assistant("four")], "rejected": [assistant("five")]}
    assert load(row, tokenizer).chosen_tokens == ids("user two assistant four </s>")


def test_words_that_only_an_open_answer_begins_with_belong_to_no_prompt(make_tokenizer, ids):
    tokenizer = make_tokenizer(
        chat_template="{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}"
        "{% if add_generation_prompt %}assistant brief {% endif %}"
    )
    row = {"prompt": "two", "chosen": [assistant("four")], "rejected": [assistant("five")]}
    pair = load(row, tokenizer)
    assert prompt_of(row, tokenizer) == ids("user two </s>")
    assert pair.chosen_tokens == ids("user two </s> assistant four </s>")


def test_template_that_rewrites_the_prompt_is_refused(make_tokenizer):
    tokenizer = make_tokenizer(
        chat_template="{{ messages | length }} {% for m in messages %}{{ m.content }} {% endfor %}"
    )
    row = {"prompt": "two", "chosen": [assistant("four")], "rejected": [assistant("five")]}
    with pytest.raises(DataError, match="Row 0: the chat template writes the prompt differently"):
        load(row, tokenizer)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "two", "chosen": "four"}, "column 'rejected' is missing"),
        ({"prompt": "two", "chosen": "four", "rejected": 5}, "column 'rejected' holds '5'"),
        ({"chosen": [assistant("four")], "rejected": [assistant("five")]}, "no prompt with"),
        ({"chosen": [user("two")], "rejected": [user("two")]}, "no prompt with"),
        ({"prompt": "two", "chosen": "four", "rejected": "four"}, "are the same answer"),
        ({"chosen": "two is four", "rejected": "two is four"}, "are the same answer"),
    ],
)
def test_bad_rows_are_refused(chat_tokenizer, row, words):
    with pytest.raises(DataError, match="Row 0") as caught:
        load(row, chat_tokenizer)
    assert words in str(caught.value)


def test_longer_answer_counts(plain_tokenizer):
    row = {"prompt": "two plus", "chosen": "two", "rejected": "two plus four"}
    load_preferences([row], plain_tokenizer, SequenceForm(6))
    with pytest.raises(DataError, match=r"Row 0 has 6 tokens, but data\.max_tokens = 5"):
        load_preferences([row], plain_tokenizer, SequenceForm(5))


def test_tokenizer_without_end_token_is_refused(make_tokenizer):
    row = {"prompt": "two", "chosen": "four", "rejected": "five"}
    with pytest.raises(DataError, match="no end token"):
        load(row, make_tokenizer(eos=None))
