from __future__ import annotations

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.reasoning_gym_rows import open_task
from flexrlhf.learning.data.rows import load_rows


def test_rows_have_prompt_answer_and_what_scoring_needs():
    options = {"min_terms": 2, "max_terms": 2}
    rows = load_rows("reasoning_gym:chain_sum", size=3, seed=1, options=options)
    assert len(rows) == 3
    task = open_task("chain_sum", {**options, "size": 3, "seed": 1})
    for row, entry in zip(rows, task, strict=True):
        assert row == {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "task_options": options,
        }


@pytest.mark.slow
def test_seed_fixes_rows_that_depend_on_the_order_of_sets(monkeypatch):
    # In one process after another, this task makes other rows from the same seed.
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = load_rows("reasoning_gym:polynomial_multiplication", size=5, seed=7)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert load_rows("reasoning_gym:polynomial_multiplication", size=5, seed=7) == first


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("chain_sm", {}, "Did you mean 'chain_sum'?"),
        ("chain_sum", {"min_term": 2}, "Did you mean 'min_terms'?"),
        ("chain_sum", {"min_terms": 9}, "max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "two"}, "refuses its options"),
        ("decimal_arithmetic", {"max_num_decimal_places": 2}, "refuses its options: empty range"),
    ],
)
def test_bad_tasks_are_refused(task, options, words):
    with pytest.raises(DataError) as caught:
        open_task(task, options)
    assert words in str(caught.value)
    assert caught.value.right
    assert caught.value.do
