"""What a row states."""

from __future__ import annotations

import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.planning.cases.case import CaseRefused, case_of


def test_what_is_not_stated_is_absent(row):
    case = case_of(row(gpu="unstated", zero_stage="", critic_model="unstated"), 2)
    assert case.word("gpu") is None
    assert case.number("zero_stage") is None
    assert case.has_role("critic")
    assert case.count("steps", 7) == 7


def test_conditions_come_as_keys(row):
    case = case_of(row(variant="hybrid_engine=on;gpus_critic=2; turns=16"), 2)
    assert case.variant["hybrid_engine"] == "on"
    assert case.number("gpus_critic") == 2


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("metric", "iteration_tme"),
        ("metric", ""),
        ("algorithm", "ppo2"),
        ("actor_model", "llama-8t"),
        ("n_gpus", "0"),
        ("n_gpus", "-8"),
        ("n_gpus", "7.5"),
        ("n_gpus", "eight"),
        ("n_gpus_generate", "nan"),
    ],
)
def test_what_no_list_knows_refuses_the_row(row, column, text):
    with pytest.raises(CaseRefused):
        case_of(row(**{column: text}), 2)


def test_a_refusal_names_the_nearest(row):
    with pytest.raises(CaseRefused, match="iteration_time"):
        case_of(row(metric="iteration_tme"), 2)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("prompt_tokens_mean", "many"),
        ("response_tokens_max", "-1"),
        ("prompts_per_iteration", "inf"),
        ("epochs", "1e300"),
        ("n_gpus", "1000000000"),
    ],
)
def test_absurd_numbers_are_errors_in_three_parts(row, column, text):
    with pytest.raises(DataError) as raised:
        case_of(row(**{column: text}), 17)
    assert "Line 17" in raised.value.wrong
    assert column in raised.value.wrong
    assert raised.value.right
    assert raised.value.do
