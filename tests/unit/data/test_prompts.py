from __future__ import annotations

import logging

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.prompts import load_prompts

ASKED = [{"role": "user", "content": "what is two ?"}]
ASKED_TOKENS = "<|start|> user what is two ? <|end|> <|start|> assistant"


def test_plain_text_gets_the_begin_token_once(chat_tokenizer, ids):
    (prompt,) = load_prompts(
        [{"prompt": "what is two ?", "answer": "2"}], chat_tokenizer, max_prompt_tokens=10
    )
    assert prompt.tokens == ids("<s> what is two ?")
    assert prompt.text == "what is two ?"
    assert prompt.messages is None
    assert prompt.columns == {"answer": "2"}


def test_end_token_that_a_tokenizer_adds_is_left_out(make_tokenizer, ids):
    tokenizer = make_tokenizer(adds="<s> $A </s>")
    (prompt,) = load_prompts([{"prompt": "what is two ?"}], tokenizer, max_prompt_tokens=10)
    assert prompt.tokens == ids("<s> what is two ?")


def test_conversation_is_rendered_without_a_second_begin_token(make_tokenizer, ids):
    template = "<s>" + "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = make_tokenizer(chat_template=template, adds="<s> $A")
    (prompt,) = load_prompts([{"prompt": ASKED}], tokenizer, max_prompt_tokens=10)
    assert prompt.tokens == ids("<s> what is two ?")


def test_conversation_opens_the_assistants_answer(chat_tokenizer, ids):
    (prompt,) = load_prompts([{"prompt": ASKED}], chat_tokenizer, max_prompt_tokens=20)
    assert prompt.tokens == ids(ASKED_TOKENS)
    assert prompt.messages == ASKED


def test_whole_conversation_is_cut_after_the_last_user(chat_tokenizer, ids):
    messages = [*ASKED, {"role": "assistant", "content": "four"}]
    (prompt,) = load_prompts([{"messages": messages}], chat_tokenizer, max_prompt_tokens=20)
    assert prompt.tokens == ids(ASKED_TOKENS)


def test_prompt_that_ends_with_the_assistant_is_continued(chat_tokenizer, ids):
    messages = [*ASKED, {"role": "assistant", "content": "two is"}]
    (prompt,) = load_prompts([{"prompt": messages}], chat_tokenizer, max_prompt_tokens=20)
    assert prompt.tokens == ids(ASKED_TOKENS + " two is")


def test_system_prompt_comes_first_unless_the_row_has_one(chat_tokenizer, ids):
    own = [{"role": "system", "content": "you are five"}, *ASKED]
    prompts = load_prompts(
        [{"prompt": ASKED}, {"prompt": own}],
        chat_tokenizer,
        system_prompt="you are brief",
        max_prompt_tokens=20,
    )
    assert prompts[0].tokens == ids("<|start|> system you are brief <|end|> " + ASKED_TOKENS)
    assert prompts[1].tokens == ids("<|start|> system you are five <|end|> " + ASKED_TOKENS)


def test_chat_always_makes_plain_text_a_users_message(chat_tokenizer, ids):
    (prompt,) = load_prompts(
        [{"prompt": "what is two ?"}], chat_tokenizer, chat="always", max_prompt_tokens=20
    )
    assert prompt.messages == ASKED
    assert prompt.tokens == ids(ASKED_TOKENS)


def test_openrlhf_and_verl_columns(chat_tokenizer):
    (openrlhf,) = load_prompts(
        [{"input": "two", "label": "2"}], chat_tokenizer, max_prompt_tokens=20
    )
    assert openrlhf.columns == {"label": "2"}
    row = {
        "data_source": "openai/gsm8k",
        "prompt": ASKED,
        "reward_model": {"style": "rule", "ground_truth": "2"},
    }
    (verl,) = load_prompts([row], chat_tokenizer, max_prompt_tokens=20)
    assert verl.columns["ground_truth"] == "2"
    assert verl.columns["data_source"] == "openai/gsm8k"


def test_keys_that_a_columnar_file_fills_with_none_are_left_out(make_tokenizer, ids):
    template = (
        "{% for m in messages %}{{ 'five' if m.tool_calls is defined else m.content }}{% endfor %}"
    )
    tokenizer = make_tokenizer(chat_template=template)
    row = {"prompt": [{"role": "user", "content": "two", "tool_calls": None}]}
    (prompt,) = load_prompts([row], tokenizer, max_prompt_tokens=20)
    assert prompt.tokens == ids("two")


def test_long_prompt_is_refused_with_row_and_length(plain_tokenizer):
    rows = [{"prompt": "two"}, {"prompt": "two plus two"}, {"prompt": "two plus two plus two"}]
    with pytest.raises(DataError) as caught:
        load_prompts(rows, plain_tokenizer, max_prompt_tokens=2)
    assert str(caught.value).splitlines() == [
        "Row 1 has 3 tokens, but data.max_prompt_tokens = 2. 1 more rows are too long.",
        "  The longest row has 5; rows are counted from 0.",
        "  Raise data.max_prompt_tokens, shorten the rows, or leave them out with"
        " data.too_long = drop.",
    ]


def test_long_prompts_are_dropped_on_request(plain_tokenizer, caplog):
    rows = [{"prompt": "two plus two"}, {"prompt": "two"}]
    with caplog.at_level(logging.WARNING):
        prompts = load_prompts(rows, plain_tokenizer, max_prompt_tokens=2, too_long="drop")
    assert [prompt.index for prompt in prompts] == [1]
    assert "1 of 2 rows left out" in caplog.text


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "no rows"),
        ([{"question": "two"}], {}, "They have question"),
        ([{"question": "two"}], {"prompt_column": "questions"}, "Did you mean 'question'?"),
        ([{"prompt": "two"}, {"prompt": None}], {}, "Row 1: column 'prompt' holds 'None'"),
        ([{"prompt": "two"}, {"input": "two"}], {}, "Row 1: column 'prompt' holds 'None'"),
        ([{"prompt": ""}], {}, "no tokens"),
        ([{"prompt": ["two"]}], {}, "message without role"),
        ([{"messages": [{"role": "assistant", "content": "two"}]}], {}, "nobody asks"),
        ([{"prompt": ASKED}], {}, "no chat template"),
        ([{"prompt": "two"}], {"chat": "always"}, "no chat template"),
        ([{"prompt": ASKED}], {"chat": "never"}, "chat = never"),
        ([{"prompt": "two"}], {"system_prompt": "you"}, "no place for the system prompt"),
        ([{"prompt": "two plus"}], {"too_long": "drop"}, "No row is left"),
    ],
)
def test_bad_rows_are_refused(plain_tokenizer, rows, options, words):
    with pytest.raises(DataError) as caught:
        load_prompts(rows, plain_tokenizer, max_prompt_tokens=1, **options)
    assert words in str(caught.value)
    assert caught.value.do


def test_conversation_that_the_template_refuses_names_its_row(make_tokenizer):
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(DataError, match=r"Row 0: .*System role not supported") as caught:
        load_prompts(
            [{"prompt": ASKED}],
            make_tokenizer(chat_template=template),
            system_prompt="you are brief",
            max_prompt_tokens=9,
        )
    assert "system, user" in caught.value.right


@pytest.mark.parametrize(
    "wrong", ["{{ 1 / 0 }}", "{{ messages[7].content.x }}", "{{ messages(", "{% for %}"]
)
def test_a_template_that_does_not_work_is_refused(make_tokenizer, wrong):
    with pytest.raises(DataError, match="Row 0: the chat template refuses the conversation"):
        load_prompts([{"prompt": ASKED}], make_tokenizer(chat_template=wrong), max_prompt_tokens=9)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"content": "two"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": 5, "content": "two"},
        "two",
        None,
    ],
)
def test_a_message_that_a_template_would_misread_is_refused(chat_tokenizer, message):
    with pytest.raises(DataError, match="Row 0 has a message without role or content"):
        load_prompts([{"prompt": [message]}], chat_tokenizer, max_prompt_tokens=9)
