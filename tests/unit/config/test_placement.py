"""Section `placement`: what it means, and what in it contradicts itself or the algorithm."""

from __future__ import annotations

from fractions import Fraction

import pytest

from flexrlhf.config import build_config
from flexrlhf.config.placement import Placement, exact_share
from flexrlhf.config.resolution import placement_of
from flexrlhf.core.errors import ConfigError


def problems_of(document) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(document)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:-1]]


def placed(document, **section):
    return placement_of(build_config({**document, "placement": section}))


def test_shares_are_exact():
    assert exact_share(0.3) == Fraction(3, 10)
    assert exact_share(1) == 1
    assert exact_share("1/3") == Fraction(1, 3)


def test_auto_is_the_section_with_its_defaults(ppo):
    assert placement_of(build_config(ppo)) == Placement()
    assert placed(ppo, strategy="auto") == Placement()
    assert (Placement().memory_fill, Placement().objective) == (0.95, "throughput")


def test_pools_may_be_a_share_or_a_section(ppo):
    pools = {"train": 0.5, "generate": {"share": 0.3}, "score": {"share": 0.2, "ratio": [1, 1, 1]}}
    found = placed(ppo, pools=pools).pools.sections
    assert {name: (pool.share, pool.ratio) for name, pool in found.items()} == {
        "train": (0.5, None),
        "score": (0.2, (1, 1, 1)),
        "generate": (0.3, None),
    }


def test_device_lists_stand_in_either_of_two_places(ppo):
    lists = {role: [0, 1] for role in ("actor", "critic", "reward")}
    found = placed(ppo, devices=lists, roles={"reference": {"devices": [1]}}).device_lists
    assert found == dict.fromkeys(lists, (0, 1)) | {"reference": (1,)}


@pytest.mark.parametrize(
    "section",
    [
        {"ratio": [1, 1, 0.5, 0.5]},
        {"ratio": [1, 1, "1/3", "2/3"], "strategy": "interleaved_1"},
        {"ratio": [1, 1, 1, 1], "strategy": "colocated"},
        {"pools": {"train": "1/3", "generate": "1/3", "score": "1/3"}},
        {"pools": {"train": 0.7, "generate": 0.3}, "strategy": "disaggregated"},
        {"pools": {"train": 0.5, "generate": 0.5}, "devices": {"reward": [3]}},
        {"strategy": "verl"},
        {"strategy": "all"},
        {"strategy": "guideline", "max_p99_iteration_s": 30, "objective": "cost"},
        {"roles": {"actor": {"tensor_parallel": 2, "zero_stage": 0, "generation": "per_token"}}},
        {"roles": {"shadow_actor": {"tensor_parallel": 2}}},
    ],
)
def test_what_fits(ppo, section):
    build_config({**ppo, "placement": section})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"ratio": [1, 1, 0.5]}, "3 shares for the 4 models of ppo. Right: one each for actor,"),
        ({"ratio": [1, 1, "3/2", 0.5]}, 'placement.ratio.2 = "3/2": more than all.'),
        (
            {"ratio": [1, 1, 0.5, 0.5], "strategy": "disaggregated"},
            'placement.strategy = "disaggregated": it does not leave placement.ratio to you.',
        ),
        ({"ratio": [1, 1, 1, 1], "strategy": "guideline"}, "does not leave placement.ratio to you"),
        (
            {"pools": {"train": 0.5, "generate": 0.5}, "strategy": "colocated"},
            "it does not leave placement.pools to you. Right: auto, custom, disaggregated;",
        ),
        ({"pools": {"train": 0.5, "generate": 0.4}}, "the shares sum to 0.9."),
        (
            {"pools": {"train": {"share": 0.5, "ratio": [1, "4/3"]}, "generate": 0.5}},
            'placement.pools.train.ratio.1 = "4/3": more than all.',
        ),
        ({"strategy": "custom"}, "nothing says where the roles go."),
        ({"devices": {"actor": [0], "critic": [0]}}, "no place for reference, reward."),
        (
            {"ratio": [1, 1, 1, 1], "devices": {"actor": [0, 0]}},
            "placement.devices.actor = [0, 0]: a device stands there twice.",
        ),
        (
            {
                "ratio": [1, 1, 1, 1],
                "devices": {"actor": [0, 1]},
                "roles": {"actor": {"devices": [0]}},
            },
            "placement.roles.actor.devices = [0]: placement.devices.actor says otherwise.",
        ),
        (
            {"roles": {"critic": {"generation": "gathered"}}},
            'placement.roles.critic.generation = "gathered": the critic does not generate.',
        ),
        (
            {"roles": {"actor": {"generation": "gathered", "generation_tensor_parallel": 2}}},
            "weights that are gathered are whole on each device.",
        ),
    ],
)
def test_contradictions(ppo, section, said):
    (problem,) = problems_of({**ppo, "placement": section})
    assert said in problem


def test_ratio_and_pools_divide_the_same_devices(ppo):
    section = {"ratio": [1, 1, 0.5, 0.5], "pools": {"train": 0.5, "generate": 0.5}}
    (problem,) = problems_of({**ppo, "placement": section})
    assert problem.startswith("placement.ratio: given beside placement.pools")


@pytest.mark.parametrize(
    ("algorithm", "ratio", "models"),
    [
        ({"name": "ppo", "share_actor_critic": True}, [1, 0.5, 0.5], "actor, reference, reward"),
        ({"name": "ppo", "kl_coef": 0}, [1, 1, 1], "actor, critic, reward"),
        ({"name": "grpo"}, [1, 0.5, 0.5], "actor, reference, reward"),
        ({"name": "dapo"}, [1, 1], "actor, reward"),
    ],
)
def test_a_ratio_has_one_share_per_model_of_the_algorithm(ppo, algorithm, ratio, models):
    document = {**ppo, "algorithm": algorithm}
    assert placed(document, ratio=ratio).ratio == tuple(ratio)
    (problem,) = problems_of({**document, "placement": {"ratio": [*ratio, 1]}})
    assert f"Right: one each for {models}" in problem


def test_reward_functions_have_no_share(grpo):
    placed(grpo, ratio=[1, 1])
    (problem,) = problems_of({**grpo, "placement": {"ratio": [1, 0.5, 0.5]}})
    assert "one each for actor, reference; reward is no model here." in problem


def test_what_does_not_generate_has_no_pools_and_no_shadows():
    document = {
        "algorithm": {"name": "dpo"},
        "model": {"actor": {"shape": "llama-7b"}},
        "placement": {"pools": {"train": 0.5, "generate": 0.5}},
    }
    (problem,) = problems_of(document)
    assert "dpo generates nothing that a pool of its own could." in problem
    document["placement"] = {"roles": {"shadow_actor": {"tensor_parallel": 2}}}
    (problem,) = problems_of(document)
    assert problem.startswith("placement.roles.shadow_actor: given, but dpo has no such role.")


def test_a_stage_is_held_to_its_own_placement(stages):
    stages["stages"][2]["placement"] = {"ratio": [1, 1, 0.5]}
    (problem,) = problems_of(stages)
    assert problem.startswith("stages.ppo.placement.ratio = ")


def test_lists_and_words_survive_a_round_trip(ppo):
    from flexrlhf.config import dump_config
    from flexrlhf.config.yaml_text import parse_yaml

    config = build_config({**ppo, "placement": {"ratio": [1, 1, "1/3", "2/3"]}})
    assert build_config(parse_yaml(dump_config(config), "dump")) == config
