from __future__ import annotations

import pytest

from flexrlhf.planning.cases.vocabulary import COLUMNS

STATED = {
    "system": "DeepSpeed-Chat",
    "algorithm": "ppo",
    "strategy": "colocated",
    "gpu": "A100-80G",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "actor_model": "llama2-7b",
    "critic_model": "llama2-7b",
    "reference_model": "llama2-7b",
    "reward_model": "llama2-7b",
    "prompt_tokens_mean": "128",
    "prompt_tokens_max": "128",
    "response_tokens_mean": "128",
    "response_tokens_max": "128",
    "prompts_per_iteration": "256",
    "samples_per_prompt": "1",
    "num_minibatches": "2",
    "epochs": "1",
    "metric": "iteration_time",
}


@pytest.fixture
def row():
    """Returns a maker of rows: what is stated, changed by keywords; all else is empty."""

    def make(**changes):
        return dict.fromkeys(COLUMNS, "") | STATED | changes

    return make
