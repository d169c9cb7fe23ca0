"""Runs of several stages: what a stage takes over, and what it may refer to."""

from __future__ import annotations

import pytest

from flexrlhf.config import build_config
from flexrlhf.core.errors import ConfigError


def problems_of(document) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(document)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:-1]]


def test_a_stage_takes_over_what_it_does_not_give(stages):
    config = build_config(stages)
    named = dict(config.stage_configs())
    assert list(named) == ["sft", "rm", "ppo"]
    assert [stage.training.iterations for stage in named.values()] == [7, 7, 2]
    assert all(stage.run.seed == 3 for stage in named.values())
    assert named["rm"].model.reward.path == "stage:sft/actor"
    assert named["ppo"].stages == ()


def test_a_stage_config_is_what_the_same_plain_run_would_be(stages):
    config = build_config(stages)
    sft = {key: value for key, value in stages["stages"][0].items() if key != "name"}
    plain = build_config({"run": {"seed": 3}, "training": {"iterations": 7}, **sft})
    assert config.stage_configs()[0] == ("sft", plain)


def test_sections_merge_key_by_key_and_lists_as_a_whole(stages):
    stages["rollout"] = {"max_new_tokens": 9, "top_k": 5}
    stages["reward"] = {"functions": [{"name": "math"}], "model_weight": 2}
    stages["stages"][2]["rollout"] = {"top_k": 0}
    stages["stages"][2]["reward"] = {"functions": [{"path": "a.py:f"}]}
    ppo = dict(build_config(stages).stage_configs())["ppo"]
    assert (ppo.rollout.max_new_tokens, ppo.rollout.top_k) == (9, 0)
    assert ppo.reward.model_weight == 2
    assert [function.path for function in ppo.reward.functions] == ["a.py:f"]


def test_a_new_origin_of_a_role_replaces_the_one_of_the_top(stages):
    stages["model"] = {
        "actor": {
            "init": "random",
            "architecture": {"model_type": "llama"},
            "tokenizer": "tokenizer",
            "dtype": "float64",
        }
    }
    del stages["stages"][0]["model"]
    named = dict(build_config(stages).stage_configs())
    assert named["sft"].model.actor.init == "random"
    actor = named["ppo"].model.actor
    assert (actor.path, actor.init, actor.architecture) == ("stage:sft/actor", None, None)
    assert (actor.dtype, actor.tokenizer) == ("float64", "tokenizer")


def test_roles_of_the_top_reach_only_the_stages_that_have_them(stages):
    stages["model"] = {"critic": {"path": "models/critic"}}
    named = dict(build_config(stages).stage_configs())
    assert named["sft"].model.critic is None
    assert named["ppo"].model.critic.path == "models/critic"


def test_a_role_given_by_the_stage_itself_is_still_refused(stages):
    stages["stages"][0]["model"]["critic"] = {"path": "models/critic"}
    (problem,) = problems_of(stages)
    assert problem.startswith("stages.sft.model.critic: given, but sft has none.")


def test_null_takes_away_what_the_top_gives(stages):
    stages["data"] = {"evaluation": {"path": "held_out.jsonl"}}
    stages["stages"][0]["data"]["evaluation"] = None
    named = dict(build_config(stages).stage_configs())
    assert named["sft"].data.evaluation is None
    assert named["ppo"].data.evaluation.path == "held_out.jsonl"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("stage:ppo/actor", "no stage before is called ppo. Before: sft, rm."),
        ("stage:sfd/actor", "no stage before is called sfd."),
        ("stage:rm/actor", "stage rm does not train a actor. It trains: reward."),
        ("stage:sft", "not of the form stage:NAME/ROLE."),
    ],
)
def test_a_stage_path_names_an_earlier_stage_and_a_role_it_trains(stages, path, said):
    stages["stages"][2]["model"]["actor"]["path"] = path
    (problem,) = problems_of(stages)
    assert problem.startswith(f'stages.ppo.model.actor.path = "{path}"')
    assert said in problem


def test_a_plain_run_has_no_stages_to_name(ppo):
    ppo["model"]["actor"]["path"] = "stage:sft/actor"
    assert "no stage before is called sft. Before: none." in problems_of(ppo)[0]


def test_a_problem_of_the_top_is_reported_once_where_it_stands(stages):
    stages["training"]["iterations"] = 0
    stages["optimizer"] = {}
    assert [problem.split()[0] for problem in problems_of(stages)] == [
        "training.iterations",
        "optimizer:",
    ]


def test_problems_of_stages_carry_their_names(stages):
    stages["stages"][0]["trainings"] = {}
    stages["stages"][1]["data"] = {}
    stages["stages"][2]["training"]["iterations"] = 0
    assert [problem.split(":")[0].split(" ")[0] for problem in problems_of(stages)] == [
        "stages.sft.trainings",
        "stages.rm.data.preferences",
        "stages.ppo.training.iterations",
    ]


def test_a_broken_stage_does_not_break_those_that_use_it(stages):
    stages["stages"][0]["algorithm"]["name"] = "sfd"
    (problem,) = problems_of(stages)
    assert problem.startswith("stages.sft.algorithm.name")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("sft", 'stages.3 = "sft": not a stage.'),
        ({}, "stages.3.name: missing."),
        ({"name": "My stage"}, 'stages.3.name = "My stage": not a lower-case word.'),
        ({"name": "sft2\n"}, 'stages.3.name = "sft2\\n": not a lower-case word.'),
        ({"name": 3}, "stages.3.name = 3: not a lower-case word."),
        ({"name": "rm"}, 'stages.3.name = "rm": the name of an earlier stage.'),
        ({"name": "more", "stages": []}, "stages.more.stages: a stage has no stages."),
    ],
)
def test_what_is_no_stage(stages, entry, said):
    stages["stages"].append(entry)
    assert problems_of(stages)[0].startswith(said)


@pytest.mark.parametrize("value", [[], {}, "sft", None])
def test_stages_are_a_list(stages, value):
    stages["stages"] = value
    assert "not a list of stages" in problems_of(stages)[0]
