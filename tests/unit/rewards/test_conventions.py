from __future__ import annotations

import math

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.rewards.functions import FunctionReward

ASKED = [{"role": "user", "content": "two?"}]


@pytest.fixture
def reward(write_file):
    def make(code, **settings):
        return FunctionReward(write_file("import math, numpy, sys, torch\n" + code), **settings)

    return make


def test_trl_gets_texts_tokens_and_columns(reward, sample):
    score = reward(
        "def score(prompts, completions, completion_ids, level, **columns):\n"
        "    assert prompts == ['Q: ', 'Q: ']\n"
        "    assert completions == ['a b', 'c']\n"
        "    assert completion_ids == [[0, 1], [0]]\n"
        "    assert level == [1, 2]\n"
        "    assert columns == {'answer': ['x', None]}\n"
        "    return [1, None]\n"
    )
    scores = score.score([sample("a b", level=1, answer="x"), sample("c", level=2)])
    assert scores[0] == 1.0
    assert math.isnan(scores[1])


def test_trl_gets_messages_for_conversational_prompts(reward, sample):
    score = reward(
        "def score(prompts, completions):\n"
        "    assert prompts == [[{'role': 'user', 'content': 'two?'}]]\n"
        "    return [float(c[0]['content'] == 'four' and c[0]['role'] == 'assistant')"
        " for c in completions]\n"
    )
    assert score.score([sample("four", messages=ASKED)]) == [1.0]


def test_options_are_passed_on(reward, sample):
    score = reward(
        "def score(completions, limit):\n    return [float(len(c) < limit) for c in completions]\n",
        options={"limit": 3},
    )
    assert score.score([sample("ab"), sample("abc")]) == [1.0, 0.0]


@pytest.mark.parametrize(
    "returned",
    [
        "{'rewards': torch.tensor([[1.0], [0.5]]), 'scores': None, 'extra_logs': {}}",
        "torch.tensor([1.0, 0.5])",
        "numpy.array([1.0, 0.5])",
        "[torch.tensor(1.0), numpy.float32(0.5)]",
    ],
)
def test_openrlhf_gets_queries_prompts_and_labels(reward, sample, returned):
    score = reward(
        "def score(queries, prompts, labels, **rest):\n"
        "    assert queries == ['Q: a', 'Q: b']\n"
        "    assert prompts == ['Q: ', 'Q: ']\n"
        "    assert labels == ['four', '']\n"
        f"    return {returned}\n"
    )
    assert score.score([sample("a", label="four"), sample("b")]) == [1.0, 0.5]


@pytest.mark.parametrize("returned", ["0.5", "{'score': 0.5, 'acc': True}"])
def test_verl_gets_one_solution_at_a_time(reward, sample, returned):
    score = reward(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert (data_source, solution_str, ground_truth) == ('gsm8k', 'a', '4')\n"
        "    assert extra_info == {'index': 3}\n"
        f"    return {returned}\n"
    )
    columns = {"data_source": "gsm8k", "ground_truth": "4", "extra_info": {"index": 3}}
    assert score.score([sample("a", **columns)]) == [0.5]


def test_numbers_of_every_kind_count(reward, sample):
    score = reward("def score(completions):\n    return (True, 2, numpy.float64(3))\n")
    assert score.score([sample("a")] * 3) == [1.0, 2.0, 3.0]


TRL = "def score(completions, **columns):\n    return {}\n"
VERL = "def score(data_source, solution_str, ground_truth):\n    return {}\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (TRL.format("[1.0]"), "returned 1 rewards for 2 answers"),
        (TRL.format("[1.0, math.nan]"), "returned 'nan' for row 4 (sample 5)"),
        (TRL.format("[1.0, math.inf]"), "returned 'inf' for row 4 (sample 5)"),
        (TRL.format("[10**400, 1.0]"), "returned '1000000000"),
        (TRL.format("sys.exit(0)"), "raised SystemExit: 0 (my_rewards.py"),
        (TRL.format("['one', 1.0]"), "returned 'one' for row 3 (sample 4)"),
        (TRL.format("[[1.0], 1.0]"), "returned '[1.0]' for row 3 (sample 4)"),
        (TRL.format("1.0"), "returned a float: 1.0"),
        (TRL.format("None"), "returned a NoneType: None"),
        (TRL.format("{'reward': [1, 1]}"), "returned a dict"),
        (
            TRL.format("[1 / 0]"),
            "raised ZeroDivisionError: division by zero (my_rewards.py",
        ),
        (TRL.format("[math.sqrt(-1)]"), "(my_rewards.py, line 3) for 2 answers from row 3"),
        (
            VERL.format("1 / 0"),
            "division by zero (my_rewards.py, line 3) for row 3",
        ),
        (VERL.format("None"), "returned 'None' for row 3 (sample 4)"),
        (VERL.format("{'acc': 1}"), "returned a dict without 'score' for row 3 (sample 4)"),
        (
            "def score(completions, solution):\n    return [0, 0]\n",
            "needs column 'solution', which row 3 lacks",
        ),
        (
            "def score(queries, prompts, labels):\n    return {'scores': [0, 0]}\n",
            "returned a dict without 'rewards'",
        ),
    ],
)
def test_wrong_functions_are_named_with_row_and_value(reward, sample, code, words):
    samples = [sample("a", row=3, number=4, answer="x"), sample("b", row=4, number=5, answer="y")]
    with pytest.raises(DataError) as caught:
        reward(code).score(samples)
    assert "'score'" in caught.value.wrong
    assert words in caught.value.wrong
    assert caught.value.right
    assert caught.value.do


def test_own_error_is_kept_as_the_cause(reward, sample):
    with pytest.raises(DataError) as caught:
        reward(TRL.format("[{}['x']]")).score([sample("a")])
    assert isinstance(caught.value.__cause__, KeyError)


TAKES_A_LEVEL = "def score(completions, level, least=0, **rest):\n    return level\n"


def test_a_column_that_no_row_has_is_missing(reward, sample):
    prompts = [sample("", row=3, answer="x").prompt, sample("", row=4).prompt]
    with pytest.raises(DataError, match=r"column 'level', which row 3 lacks.*\n.*: answer\."):
        reward(TAKES_A_LEVEL).check(prompts)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (TRL, {}),
        (TAKES_A_LEVEL, {"level": [1]}),
        ("def score(queries, prompts, labels):\n    return labels\n", {}),
    ],
)
def test_what_a_function_gets_anyway_is_not_missing(reward, sample, code, options):
    reward(code, options=options).check([sample("").prompt])


def test_a_column_of_some_rows_is_none_for_the_others(reward, sample):
    prompts = [sample("").prompt, sample("", level=1).prompt]
    reward(TAKES_A_LEVEL).check(prompts)
    reward(TAKES_A_LEVEL).check([])


def test_verl_needs_a_reference_answer_in_every_row(reward, sample):
    prompts = [sample("", row=0, answer="4").prompt, sample("", row=1, level=2).prompt]
    reward(VERL).check(prompts[:1])
    with pytest.raises(DataError, match="needs column 'ground_truth', which row 1 lacks"):
        reward(VERL).check(prompts)


def test_verl_needs_a_reference_answer(reward, sample):
    with pytest.raises(DataError, match=r"needs column 'ground_truth'.*\n.*: level"):
        reward(VERL.format("1")).score([sample("a", level=1)])
