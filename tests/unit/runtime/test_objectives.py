"""Each trained role gets the loss that its config describes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flexrlhf.config.resolution import spec_of
from flexrlhf.learning.training.objectives import (
    DirectPreferenceObjective,
    PolicyObjective,
    PreferenceObjective,
    SharedObjective,
    SupervisedObjective,
    ValueObjective,
)
from flexrlhf.runtime.objectives import objective_of


@pytest.fixture
def objective(make_config):
    def make(role: str, name: str, /, **sections):
        config = make_config(name, **sections)
        return objective_of(role, config, spec_of(config))

    return make


def test_every_constant_of_the_policy_loss_comes_from_the_config(objective):
    algorithm = {
        "clip": 0.1,
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "loss_aggregation": "sequence_sum",
        "entropy_coef": 0.02,
        "kl_coef": 0.4,
        "kl_estimator": "k2",
        "kl_placement": "loss",
    }
    found = objective("actor", "grpo", algorithm=algorithm, rollout={"temperature": 0.7})
    assert found == PolicyObjective(
        clip_low=0.1,
        clip_high=0.3,
        dual_clip=3.0,
        aggregation="sequence_sum",
        entropy_coef=0.02,
        kl_coef=0.4,
        kl_estimator="k2",
        temperature=0.7,
        is_on_policy=True,
    )
    algorithm["epochs"] = 2
    twice = objective("actor", "grpo", algorithm=algorithm, rollout={"temperature": 0.7})
    assert twice == replace(found, is_on_policy=False)


@pytest.mark.parametrize(
    ("name", "options", "in_loss", "in_reward"),
    [
        ("grpo", {"kl_coef": 0.3}, 0.3, False),
        ("grpo", {"kl_coef": 0.3, "kl_placement": "reward"}, 0.0, True),
        ("grpo", {"kl_coef": 0.0}, 0.0, False),
        ("ppo", {"kl_coef": 0.3}, 0.0, True),
        ("ppo", {"kl_coef": 0.3, "kl_placement": "loss"}, 0.3, False),
    ],
)
def test_kl_is_charged_in_one_place_only(
    objective, make_launched, name, options, in_loss, in_reward
):
    assert objective("actor", name, algorithm=options).kl_coef == in_loss
    rollouts = make_launched(name, algorithm=options).worker.source
    assert rollouts.advantage.kl_in_reward is in_reward
    assert rollouts.kl.coefficient == options["kl_coef"]


def test_a_critic_of_its_own(objective):
    assert objective("critic", "ppo") == ValueObjective(clip=0.2)
    no_clip = objective("critic", "ppo", algorithm={"value_clip": None})
    assert no_clip == ValueObjective(clip=math.inf)


def test_actor_and_critic_of_one_trunk(objective):
    algorithm = {"share_actor_critic": True, "value_coef": 0.25, "value_clip": 0.5}
    found = objective("actor", "ppo", algorithm=algorithm)
    assert isinstance(found, SharedObjective)
    assert (found.value_coef, found.value) == (0.25, ValueObjective(clip=0.5))
    assert isinstance(found.policy, PolicyObjective)


def test_data_sets_that_are_trained_on_directly(objective):
    assert objective("actor", "sft") == SupervisedObjective()
    assert objective("reward", "reward_model") == PreferenceObjective()


def test_a_policy_on_pairs(objective):
    assert objective("actor", "dpo") == DirectPreferenceObjective("sigmoid", beta=0.1)
    assert objective("actor", "ipo", algorithm={"beta": 0.3}) == DirectPreferenceObjective(
        "ipo", beta=0.3
    )
    algorithm = {"beta": 0.2, "loss_type": "robust", "label_smoothing": 0.05}
    assert objective("actor", "dpo", algorithm=algorithm) == DirectPreferenceObjective(
        "robust", beta=0.2, label_smoothing=0.05
    )
