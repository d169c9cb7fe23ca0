"""A reward function that breaks costs nothing finished; one that is none starts nothing."""

from __future__ import annotations

import pytest

FAILING = """
count = 0


def score(completions, **columns):
    global count
    count += 1
    if count > 3:
        {failure}
    return [float(len(text)) for text in completions]
"""


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("raise KeyError('lost')", "'score' raised KeyError: 'lost' (failing.py, line 9)"),
        ("return [float('nan')] * len(completions)", "'score' returned 'nan'"),
        ("return [1.0]", "'score' returned 1 rewards for 16 answers"),
        ("return [None] * len(completions)", "No reward applies to answer 0"),
        ("return None", "returned a NoneType"),
        ("return ['1.0'] * len(completions)", "returned '1.0'"),
        ("return {'score': 1.0}", "returned a dict"),
        ("return [10**400] * len(completions)", "A reward is a finite number"),
        ("return [1e300] * len(completions)", "is out of range: 1e+300 by score"),
        ("raise SystemExit(0)", "raised SystemExit: 0"),
        ("raise MemoryError", "raised MemoryError"),
        ("return score(completions)", "raised RecursionError"),
    ],
)
def test_a_reward_function_that_breaks_costs_nothing_finished(
    changed, outcome, tmp_path, failure, said
):
    (tmp_path / "failing.py").write_text(FAILING.format(failure=failure))
    content = changed("ppo", {"reward.functions": [{"path": "failing.py:score"}]})
    assert said in outcome(content, 1)
    assert (tmp_path / "run/metrics.jsonl").read_text().count("\n") == 3
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["iteration-2"]
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.parametrize(
    ("code", "function", "said"),
    [
        ("import sys\nsys.exit(0)", {}, "SystemExit: 0"),
        ("def score(:", {}, "SyntaxError"),
        ("def scores(completions): return []", {}, "Did you mean 'scores'?"),
        ("score = 5", {}, "has no function 'score'"),
        ("def score(text): return 1", {}, "fit no framework"),
        ("async def score(completions): return []", {}, "is asynchronous"),
        ("def score(completions): return []", {"options": {"scale": 2}}, "no option 'scale'"),
        ("def score(completions): return []", {"weight": float("inf")}, "weight"),
    ],
)
def test_a_reward_function_that_is_none_starts_nothing(
    changed, outcome, tmp_path, code, function, said
):
    (tmp_path / "mine.py").write_text(code)
    functions = [{"path": "mine.py:score", **function}]
    assert said in outcome(changed("ppo", {"reward.functions": functions}), 2)


def test_a_reward_function_that_waits_is_shown_where_it_waits(changed, outcome, tmp_path):
    code = "import time\ndef score(completions):\n    time.sleep(4)\n"
    (tmp_path / "mine.py").write_text(code)
    keys = {"reward.functions": [{"path": "mine.py:score"}], "run.task_deadline_s": 2.0}
    err = outcome(changed("ppo", keys), 1)
    assert 'mine.py", line 3, in score\n    time.sleep(4)' in err


def test_a_run_whose_reward_function_is_repaired_goes_on(
    changed, failed, command, config_file, tmp_path
):
    rewards = tmp_path / "failing.py"
    rewards.write_text(FAILING.format(failure="raise KeyError('lost')"))
    content = changed("grpo", {"reward.functions": [{"path": "failing.py:score"}]})
    arguments = ("train", config_file(content), "--run-dir", tmp_path / "run")
    failed(*arguments)
    assert "Traceback" in (tmp_path / "run/log.txt").read_text()
    rewards.write_text(FAILING.format(failure="pass"))
    assert command(*arguments, "--resume")[0] == 0
