"""Which role sits where."""

from __future__ import annotations

import pytest

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.setting import setting_of


@pytest.fixture
def placed(row):
    """Returns the devices of the roles of a row."""

    def make(**changes):
        setting = setting_of(case_of(row(**changes), 2), Assumptions())
        return {role: place.devices for role, place in setting.plan.placement.items()}

    return make


def test_interleaved_1_halves_reference_and_reward(placed):
    found = placed(strategy="interleaved_1")
    assert found["reference"] == (0, 1, 2, 3)
    assert found["reward"] == (4, 5, 6, 7)
    assert found["actor"] == found["critic"] == tuple(range(8))


def test_interleaved_2_keeps_the_actor_in_a_node(placed):
    found = placed(strategy="interleaved_2", n_gpus="16")
    assert found["actor"] == tuple(range(8))
    assert found["critic"] == tuple(range(16))


def test_the_reward_alone_sits_on_one(placed):
    found = placed(strategy="reward_on_one")
    assert found["reward"] == (7,)
    assert found["reference"] == tuple(range(8))


def test_a_stated_split_is_taken_as_it_is(placed):
    found = placed(
        strategy="split",
        system="OpenRLHF",
        generation_engine="vllm",
        n_gpus_generate="2",
        n_gpus_train="2",
        n_gpus_other="4",
        variant="gpus_critic=2;gpus_reference=1;gpus_reward=1",
    )
    sizes = {role: len(devices) for role, devices in found.items()}
    assert sizes["shadow_actor"] == sizes["actor"] == sizes["critic"] == 2
    assert sizes["reference"] == sizes["reward"] == 1
    used = [device for role, held in found.items() if ":" not in role for device in held]
    assert sorted(used) == list(range(8))


def test_a_generator_without_devices_of_its_own_shares_the_actors(placed):
    found = placed(
        strategy="split",
        system="OpenRLHF",
        generation_engine="transformers",
        n_gpus_generate="4",
        n_gpus_train="4",
        n_gpus_other="4",
    )
    assert "shadow_actor" not in found
    assert found["actor"] == (0, 1, 2, 3)


def test_flexrlhf_scores_where_it_generates(placed):
    found = placed(strategy="disaggregated", system="FlexRLHF", n_gpus="16")
    assert found["reference"] == found["shadow_critic"] == found["shadow_actor"]
    assert not set(found["actor"]) & set(found["shadow_actor"])


def test_verl_scores_where_it_trains(placed):
    found = placed(strategy="disaggregated", system="verl", n_gpus="16", algorithm="grpo")
    assert found["reference"] == found["actor"]
