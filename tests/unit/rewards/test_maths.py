from __future__ import annotations

import math
import subprocess
import sys
import threading
import time

import pytest

from flexrlhf.core.errors import ConfigError, DataError, EngineMissing
from flexrlhf.learning.rewards.catalogue import load_reward
from flexrlhf.learning.rewards.maths_check import check


@pytest.mark.parametrize(
    ("right", "text"),
    [
        ("42", "I think 41, no, it is 42."),
        ("42", "<answer>42</answer>"),
        ("42", r"\boxed{42}, surely not 43"),
        ("1/2", "so it is 0.5"),
        (r"\frac{1}{2}", r"The answer is $\frac{2}{4}$."),
        (r"$\frac{1}{2}$", "1/2"),
        ("1234", "That makes 1,234"),
        ("She has 2 + 2 = <<2+2=4>>4 eggs.\n#### 4", "#### 4"),
        ("x + 1", r"\boxed{1 + x}"),
        (r"\{1, 2\}", r"$\{2, 1\}$"),
        ("-28", "The answer is -28."),
        ("-1/2", r"\boxed{-\frac{2}{4}}"),
        ("80", "61 + 19 = 80"),
        ("0.25", "1/4"),
        ("2*3", "3*2"),
    ],
)
def test_equal_answers(right, text):
    assert check((right, text)) == 1.0


@pytest.mark.parametrize(
    ("right", "text"), [("42", "43"), ("42", ""), ("42", "<answer>41</answer> 42"), ("1/3", "0.3")]
)
def test_other_answers(right, text):
    assert check((right, text)) == 0.0


@pytest.mark.parametrize(
    ("right", "text"),
    [
        ("80", "The final answer to the given arithmetic problem is 61 + 19."),
        ("-28", "15 - 43"),
        ("8", "$2^3$"),
        ("12", r"\boxed{3 \cdot 4}"),
        ("4", r"$\sqrt{16}$"),
    ],
)
def test_a_calculation_is_no_answer(right, text):
    """SmolLM2 learnt within ten iterations to repeat the question, which equals its answer."""
    assert check((right, text)) == 0.0


def test_row_without_a_mathematical_answer_does_not_count():
    assert check(("", "42")) is None


def test_reward_works_in_any_thread_and_outlives_endless_answers(sample):
    reward = load_reward("math", weight=2.0, options={"deadline_s": 3.0})
    assert (reward.name, reward.weight) == ("math", 2.0)
    samples = [
        sample("it is 4", answer=4),
        sample(r"\boxed{9^{9^{9^9}}}", solution="4"),
        sample("it is 5", ground_truth="4"),
        sample("it is 4", answer=" "),
    ]
    found = []
    thread = threading.Thread(target=lambda: found.append(reward.score(samples)))
    begin = time.monotonic()
    thread.start()
    thread.join()
    assert time.monotonic() - begin < 30
    assert found[0][:3] == [1.0, 0.0, 0.0]
    assert math.isnan(found[0][3])
    assert reward.score(samples[:1]) == [1.0]


def test_row_without_an_answer_is_refused(sample):
    with pytest.raises(DataError, match=r"'math' needs column 'answer' or 'solution'"):
        load_reward("math").score([sample("4", level=3)])
    with pytest.raises(DataError, match="which row 2 lacks"):
        load_reward("math").check([sample("", answer=1).prompt, sample("", row=2).prompt])


def test_unknown_rewards_and_options_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'math'"):
        load_reward("maths")
    with pytest.raises(ConfigError, match=r"does not take the options \{'depth': 3\}"):
        load_reward("math", options={"depth": 3})


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(EngineMissing, match="'math_verify'"):
        load_reward("math")


def test_child_starts_without_torch():
    code = "import flexrlhf.learning.rewards.maths_check, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
