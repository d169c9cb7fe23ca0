from __future__ import annotations

import sys

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.rewards.functions import FunctionReward
from flexrlhf.learning.rewards.user_function import find_function

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from math import sqrt

@dataclass
class Rule:
    word: str

def length(completions, **columns):
    return [len(text) for text in completions]

def _private(completions):
    return []

async def later(completions):
    return []
"""


def test_function_of_a_file(write_file, sample):
    reward = FunctionReward(write_file(GOOD, "length"), weight=0.5)
    assert (reward.name, reward.weight) == ("length", 0.5)
    assert reward.score([sample("abc"), sample("")]) == [3.0, 0.0]
    assert reward.score([]) == []


def test_function_of_a_module(write_file, tmp_path, monkeypatch, sample):
    write_file(GOOD, name="some_rewards.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert FunctionReward("some_rewards:length").score([sample("abc")]) == [3.0]


def test_file_hides_no_module(write_file):
    find_function(write_file(GOOD, "length", name="json.py"))
    import json

    assert hasattr(json, "loads")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("function", "wrong", "right", "do"),
    [
        ("lengths", "has no function 'lengths'", "It has length, later.", "Did you mean 'length'?"),
        ("score", "has no function 'score'", "It has length, later.", "Correct the name"),
        ("later", "is asynchronous", "called one after another", "Remove `async`"),
    ],
)
def test_wrong_functions_are_refused(write_file, function, wrong, right, do):
    with pytest.raises(ConfigError) as caught:
        find_function(write_file(GOOD, function))
    assert wrong in caught.value.wrong
    assert right in caught.value.right
    assert do in caught.value.do


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.py:score", "no file nowhere.py"),
        ("no_such_module:score", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("my_rewards.py", "names no function"),
        ("my_rewards.py:", "names no function"),
    ],
)
def test_wrong_paths_are_refused(path, words):
    with pytest.raises(ConfigError) as caught:
        find_function(path)
    assert words in caught.value.wrong
    assert caught.value.do


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def score(:\n", "SyntaxError"),
        ("import surely_absent\n", "No module named 'surely_absent'"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import sys; sys.exit(0)\n", "SystemExit: 0"),
    ],
)
def test_file_that_cannot_be_imported_is_refused(write_file, code, words):
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        find_function(write_file(code))
    assert words in caught.value.wrong
    assert caught.value.__cause__ is not None


def test_unknown_parameters_are_refused(write_file):
    with pytest.raises(ConfigError, match=r"has parameters \(text, answer\)") as caught:
        FunctionReward(write_file("def score(text, answer):\n    return 1\n"))
    assert "TRL" in caught.value.right


@pytest.mark.parametrize(
    ("parameters", "options", "words"),
    [
        (
            "completions, scale=1",
            {"scal": 2},
            "no option 'scal'.\n  Options are its other parameters: scale",
        ),
        ("completions", {"scale": 2}, "parameters: none.\n  Remove the option"),
        ("completions, **columns", {"completions": []}, "no option 'completions'"),
        ("solution_str, **rest", {"ground_truth": 4}, "no option 'ground_truth'"),
    ],
)
def test_options_that_reach_no_parameter_are_refused(write_file, parameters, options, words):
    with pytest.raises(ConfigError) as caught:
        find_function(write_file(f"def score({parameters}): pass"), options)
    assert words in str(caught.value)


def test_any_option_reaches_a_function_that_takes_everything(write_file, sample):
    path = write_file("def score(completions, **rest):\n    return [rest['scale']]\n")
    assert FunctionReward(path, options={"scale": 3}).score([sample("a")]) == [3.0]
