"""What a user fixes, on its own and together with a strategy."""

from __future__ import annotations

from fractions import Fraction

import pytest

from flexrlhf.config.placement import Placement
from flexrlhf.core.errors import ConfigError, PlanError
from flexrlhf.planning.placement.arrangement import Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import Choices, choices_of
from flexrlhf.planning.placement.pools import PoolShare


def chosen(**section):
    return choices_of(Placement.model_validate(section))


def custom(spec, cluster, **section):
    (found,) = arrangements("custom", spec, cluster, chosen(**section))
    return found


def test_choices_are_exact():
    choices = chosen(
        ratio=[1, 0.3, "1/3"],
        roles={"actor": {"tensor_parallel": 2, "devices": [0, 1]}, "critic": {}},
    )
    assert choices == Choices(
        ratio=(Fraction(1), Fraction(3, 10), Fraction(1, 3)),
        devices={"actor": (0, 1)},
        degrees={"actor": {"tensor_parallel": 2}},
    )
    pools = chosen(pools={"train": 0.5, "generate": {"share": 0.5, "ratio": [1, 1, "1/2", 0.5]}})
    half = Fraction(1, 2)
    assert pools.pools == {
        "train": PoolShare(half),
        "generate": PoolShare(half, (Fraction(1), Fraction(1), half, half)),
    }
    assert pools.has_layout
    assert not chosen(strategy="verl", roles={"actor": {"zero_stage": 3}}).has_layout


@pytest.mark.parametrize(
    ("section", "strategy"),
    [
        ({"ratio": [1, 1, 1, 1]}, "colocated"),
        ({"ratio": [1, 1, 0.5, 0.5]}, "interleaved_1"),
        ({"ratio": [1, 1, 0.75, 0.25]}, "interleaved_1"),
        ({"ratio": [0.5, 0.5, 0.5, 0.5]}, "custom"),
        ({"ratio": [1, 0.5, 0.3, 0.2]}, "custom"),
        ({"pools": {"train": 0.5, "generate": 0.3, "score": 0.2}}, "disaggregated"),
        ({"pools": {"train": 0.5, "generate": 0.5}}, "disaggregated"),
        ({"ratio": [1, 1, 1, 1], "devices": {"reward": [5]}}, "reward_on_one"),
        ({"ratio": [1, 1, 1, 1], "devices": {"reward": [5, 6]}}, "custom"),
        ({"ratio": [1, 1, 1, 1], "devices": {"shadow_actor": [5, 6]}}, "custom"),
        (
            {
                "devices": {
                    "actor": list(range(8)),
                    "critic": list(range(8, 16)),
                    "reference": [8, 9],
                    "reward": [10],
                }
            },
            "interleaved_2",
        ),
        (
            {
                "devices": {
                    "actor": [0],
                    "critic": [0],
                    "shadow_actor": [1, 2],
                    "reference": [2],
                    "reward": [3],
                }
            },
            "disaggregated",
        ),
    ],
)
def test_the_strategy_is_inferred(section, strategy, ppo, cluster):
    assert custom(ppo, cluster(2, 8), **section).strategy == strategy


def test_two_reward_models_by_ratio(two_rewards, cluster):
    found = custom(two_rewards, cluster(1, 6), ratio=[1, 1, "1/3", "1/3", "1/3"])
    assert found.strategy == "interleaved_1"
    assert found.devices["reward:safety"] == (4, 5)


def test_what_shares_became_is_shown(ppo, cluster):
    found = custom(ppo, cluster(1, 8), ratio=[1, 1, 0.7, 0.3])
    assert found.note == (
        "As the config says: actor on 8, critic on 8, reference on 6, reward on 2 of the devices. "
        "Rounded: reference's 0.7 of 8 devices, 5.6, is 6; reward's 0.3 of 8 devices, 2.4, is 2."
    )


def test_device_lists_go_before_shares(ppo, cluster):
    found = custom(
        ppo, cluster(1, 8), pools={"train": 0.5, "generate": 0.5}, devices={"reward": [7]}
    )
    assert found.devices["reward"] == (7,)
    assert found.devices["reference"] == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("section", "error", "said"),
    [
        (
            {"ratio": [1, 1, 0.5, 0.5], "strategy": "colocated"},
            PlanError,
            "placement.strategy = 'colocated', but where the roles are put is 'interleaved_1'.",
        ),
        ({"ratio": [1, 1, 0.5]}, PlanError, "has 3 shares"),
        ({"ratio": [1, 1, 0.5, 0.4]}, PlanError, "The nearest ratio that does: [1, 1, 0.5, 0.5]"),
        ({"devices": {"actor": [0]}}, PlanError, "no place for critic, reference, reward"),
        (
            {"ratio": [1, 1, 1, 1], "devices": {"reward": [16]}},
            ConfigError,
            "There is no device 16.",
        ),
        ({"pools": {"train": 0.99, "generate": 0.01}}, PlanError, "generate's 0.01 of 16 devices"),
    ],
)
def test_what_cannot_be_had(section, error, said, ppo, cluster):
    with pytest.raises(error) as caught:
        custom(ppo, cluster(2, 8), **section)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_an_unknown_strategy(ppo, cluster):
    with pytest.raises(PlanError, match="Did you mean 'colocated'"):
        arrangements("collocated", ppo, cluster(1, 8))


def test_degrees_are_added_to_what_a_strategy_fixes(ppo, cluster):
    choices = chosen(
        roles={"actor": {"offload": True, "zero_stage": 3}, "reward": {"offload": False}}
    )
    (found,) = arrangements("zero3_generation", ppo, cluster(1, 8), choices)
    assert found.degrees_of("actor") == {
        "zero_stage": 3,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "shard_devices": None,
        "offload": True,
        "generation": "per_token",
    }
    assert found.degrees_of("reward") == {"offload": False}


def test_degrees_choose_among_the_arrangements_of_a_strategy(ppo, cluster):
    choices = chosen(roles={"actor": {"generation_tensor_parallel": 4}})
    (found,) = arrangements("tp_generation", ppo, cluster(1, 8), choices)
    assert found.degrees_of("actor")["generation_tensor_parallel"] == 4
    choices = chosen(roles={"actor": {"generation": "gathered"}})
    (found,) = arrangements("deepspeed_chat", ppo, cluster(1, 8), choices)
    assert found.degrees_of("actor") == {"generation": "gathered"}


@pytest.mark.parametrize(
    ("strategy", "roles", "said"),
    [
        (
            "tp_generation",
            {"actor": {"generation": "gathered"}},
            "placement.roles.actor.generation = gathered, but tp_generation has tensor_parallel.",
        ),
        (
            "zero3_generation",
            {"actor": {"zero_stage": 2}},
            "placement.roles.actor.zero_stage = 2, but zero3_generation has 3.",
        ),
        (
            "colocated",
            {"shadow_actor": {"tensor_parallel": 2}},
            "placement.roles.shadow_actor is given, but colocated has no shadow_actor.",
        ),
        (
            "colocated",
            {"critic": {"tensor_parallel": 3}},
            "placement.roles.critic.tensor_parallel = 3 does not divide its 8 devices.",
        ),
        (
            "colocated",
            {"critic": {"tensor_parallel": 4, "pipeline_parallel": 4}},
            "tensor_parallel 4 x pipeline_parallel 4 does not make its 8 devices.",
        ),
        (
            "colocated",
            {"critic": {"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 2}},
            "tensor_parallel 2 x pipeline_parallel 1 x data_parallel 2 does not make its 8",
        ),
    ],
)
def test_degrees_that_contradict_a_strategy(strategy, roles, said, ppo, cluster):
    found = arrangements(strategy, ppo, cluster(1, 8), chosen(roles=roles))
    assert isinstance(found, Refusal)
    assert said in found.why


def test_a_user_may_fix_how_a_layout_generates(ppo, cluster):
    found = custom(
        ppo, cluster(1, 8), ratio=[1, 1, 1, 1], roles={"actor": {"generation": "per_token"}}
    )
    assert found.generation == "per_token"
    assert found.degrees_of("actor") == {"generation": "per_token"}


def test_the_slower_devices_may_stay_unused(ppo, mixed):
    whole, part = arrangements("colocated", ppo, mixed)
    assert whole.devices["actor"] == tuple(range(16))
    assert part.devices["actor"] == tuple(range(8, 16)), "the A100"
    assert part.note.endswith("8 devices stay unused (V100-32G).")


def test_nodes_beyond_a_power_of_two_may_stay_unused(ppo, cluster):
    whole, part = arrangements("colocated", ppo, cluster(5, 4))
    assert len(whole.devices["actor"]) == 20
    assert part.note.endswith(" 4 devices stay unused.")
    assert part.devices["actor"] == tuple(range(16))


def test_a_published_system_takes_all_devices(ppo, cluster):
    found = arrangements("deepspeed_chat", ppo, cluster(3, 4))
    assert all(len(arrangement.devices["actor"]) == 12 for arrangement in found)
