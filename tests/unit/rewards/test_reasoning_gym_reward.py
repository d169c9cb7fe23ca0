from __future__ import annotations

import pytest
from reasoning_gym import create_dataset

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.child_process import as_literal
from flexrlhf.learning.rewards.catalogue import load_reward
from flexrlhf.learning.rewards.reasoning_gym_check import ReasoningGymCheck

# Tasks whose metadata hold tuples, sets, or NumPy's texts, or whose scorer reads the options.
TASKS = [
    ("chain_sum", {}),
    pytest.param(
        "arc_agi",
        {},
        # The package that reads its puzzles leaves a file open.
        marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ),
    ("knights_knaves", {}),
    ("decimal_arithmetic", {"min_num_decimal_places": 2, "max_num_decimal_places": 2}),
    ("countdown", {}),
    ("simple_equations", {}),
]


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_scores_are_those_of_the_task(task, options):
    check = ReasoningGymCheck()
    dataset = create_dataset(task, seed=3, size=3, **options)
    for row in dataset:
        entry = as_literal({"answer": row["answer"], "metadata": row["metadata"]})
        for answer in (row["answer"], "17", ""):
            assert check((task, options, entry, answer)) == dataset.score_answer(answer, row)


def test_answer_stands_between_tags_or_is_the_whole_text():
    row = create_dataset("chain_sum", seed=3, size=1)[0]
    request = ("chain_sum", {}, row)
    check = ReasoningGymCheck()
    assert check((*request, f"<answer>1</answer> or\n<answer> {row['answer']} </answer>.")) == 1.0
    assert check((*request, f"\n {row['answer']}\n")) == 1.0


def test_answer_that_breaks_the_scorer_counts_nothing():
    row = create_dataset("prime_factorization", seed=3, size=1)[0]
    with pytest.raises(ValueError, match="invalid literal"):
        create_dataset("prime_factorization").score_answer("many", row)
    assert ReasoningGymCheck()(("prime_factorization", {}, row, "many")) == 0.0


def test_reward_outlives_answers_that_never_end(sample):
    row = create_dataset("polynomial_multiplication", seed=3, size=1)[0]
    columns = {"answer": row["answer"], "metadata": row["metadata"], "task_options": {}}
    reward = load_reward("reasoning_gym", options={"deadline_s": 3.0})
    scores = reward.score(
        [sample(f"<answer>{row['answer']}</answer>", **columns), sample("9**9**9", **columns)]
    )
    assert scores == [1.0, 0.0]


def test_rows_of_other_data_are_refused(sample):
    reward = load_reward("reasoning_gym")
    with pytest.raises(DataError, match="needs column 'metadata' with source_dataset"):
        reward.score([sample("4", answer="4")])
    with pytest.raises(DataError, match="needs column 'metadata' with source_dataset"):
        reward.check([sample("4", answer="4").prompt])
