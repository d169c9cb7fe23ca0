"""Every kind of wrong value gets its key, what is wrong, and what would be right."""

from __future__ import annotations

import contextlib
import copy

import pytest

from flexrlhf.config import build_config
from flexrlhf.config.schema_tree import knob_names
from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import ALGORITHMS


def problems_of(document) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(document)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:-1]]


def problem_with(document, key: str, value) -> str:
    *sections, last = key.split(".")
    holder = document
    for section in sections:
        holder = holder.setdefault(section, {})
    holder[last] = value
    (problem,) = problems_of(document)
    return problem


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "algorithm.gamma",
            1.2,
            "= 1.2: out of range. Right: a number of at least 0 and at most 1.",
        ),
        ("algorithm.gamma", float("nan"), "= NaN: out of range."),
        ("algorithm.clip_high", -1, "= -1: out of range. Right: auto or a number above 0."),
        (
            "algorithm.clip_high",
            "aut",
            "= \"aut\": not accepted here. Right: auto or a number above 0. Did you mean 'auto'?",
        ),
        ("algorithm.dual_clip", 1, "= 1: out of range. Right: a number above 1 or null."),
        ("algorithm.epochs", 1.0, "= 1.0: not accepted here. Right: a whole number of at least 1."),
        (
            "algorithm.epochs",
            True,
            "= true: not accepted here. Right: a whole number of at least 1.",
        ),
        ("algorithm.epochs", "3", '= "3": not accepted here. Right: a whole number of at least 1.'),
        ("algorithm.whiten_advantages", 1, "= 1: not accepted here. Right: true or false."),
        ("algorithm", "ppo", '= "ppo": not accepted here. Right: a section.'),
        ("data.too_long", "truncate", '= "truncate": not accepted here. Right: error or drop.'),
        ("data.prompts.path", "", '= "": not accepted here. Right: text.'),
        ("data.prompts.options", [1], "= [1]: not accepted here. Right: a mapping."),
        ("model.actor.dtype", "bf16", "Right: float32, bfloat16 or float64. Did you mean"),
        ("rollout.top_p", 0, "= 0: out of range. Right: a number above 0 and at most 1."),
        ("run.seed", 2**32, "Right: a whole number of at least 0 and below 4294967296."),
        ("training.threads", 1025, "auto or a whole number of at least 1 and at most 1024."),
        ("run.trackers", "tensorboard", "Right: a list, each entry tensorboard."),
        ("run.trackers", ["wandb"], '= "wandb": not accepted here. Right: tensorboard.'),
        ("training.betas", [0.9, 0.9, 0.9], "Right: a list of 2, each a number of at least 0"),
        ("training.betas", [0.9, 1], "training.betas.1 = 1: out of range."),
        ("reward.functions", {"name": "math"}, "Right: a list, each entry a section."),
        ("placement", "colocated", "Right: auto or a section."),
        ("placement.strategy", "interleave_1", "Did you mean 'interleaved_1'?"),
        ("placement.ratio", [1, 0], "placement.ratio.1 = 0: out of range."),
        (
            "placement.ratio",
            ["a third"],
            "Right: a number above 0 and at most 1 or text such as 1/3.",
        ),
        ("placement.ratio", [], "Right: a list of at least 1, each entry a number above 0"),
        ("placement.memory_fill", 1.5, "out of range. Right: a number above 0 and at most 1."),
        ("placement.objective", "speed", "Right: throughput or cost."),
        ("placement.roles", {"actor": {"zero_stage": 4}}, "Right: 0, 1, 2, 3 or null."),
        ("placement.roles", {"aktor": {}}, "unknown key. Did you mean 'actor'?"),
        ("model.actor.lora", {"rank": 8, "r": 8}, "lora.r: unknown key. Known here: rank."),
        ("model.actor.lora", {"rank": 0}, "model.actor.lora.rank = 0: out of range."),
        ("rollout.speedup", 0, "= 0: out of range. Right: a number above 0."),
        ("rollout.mean_new_tokens", 0.5, "out of range. Right: auto or a number of at least 1."),
        ("data.mean_prompt_tokens", 0.5, "out of range. Right: auto or a number of at least 1."),
        ("weights.sync_every", 0, "out of range. Right: auto or a whole number of at least 1."),
    ],
)
def test_wrong_values(ppo, key, value, problem):
    found = problem_with(ppo, key, value)
    assert found.startswith(key)
    assert problem in found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_accepted(name):
    spec = algorithm_spec(name)
    models = {"actor": "models/actor", "reward": "models/reward"}
    config = build_config(
        {
            "algorithm": {"name": name},
            "model": {role: {"path": path} for role, path in models.items() if role in spec.roles},
            "data": {spec.data: {"path": "data/rows.jsonl"}},
        }
    )
    assert config.algorithm.name == name


def test_an_unknown_word_is_not_called_planned(ppo):
    assert "planned" not in problem_with(ppo, "rollout.engine", "hf")


def test_a_wrong_key_in_a_section_that_may_also_be_a_word(ppo):
    problem = problem_with(ppo, "placement", {"strategi": "colocated"})
    assert problem == "placement.strategi: unknown key. Did you mean 'strategy'?"


def test_an_unknown_key_like_no_other_lists_what_is_known(ppo):
    problem = problem_with(ppo, "weights.zzz", 1)
    assert problem == "weights.zzz: unknown key. Known here: max_staleness, sync_every."


def test_keys_that_are_no_words(ppo):
    ppo["run"] = {1: 2}
    ppo["data"]["prompts"]["options"] = {"min": {1: 2}}
    options, run = problems_of(ppo)
    assert options.startswith("data.prompts.options")
    assert run.startswith("run.1: unknown key.")


def test_a_missing_key_is_said_with_its_type(ppo):
    del ppo["data"]["prompts"]["path"]
    assert problems_of(ppo) == ["data.prompts.path: missing. Right: text."]


def test_long_values_are_cut(ppo):
    assert '"xxx' in problem_with(ppo, "data.too_long", "x" * 1000)
    assert len(problem_with(ppo, "data.too_long", "x" * 1000)) < 150


def test_the_algorithm_has_to_be_named(ppo):
    del ppo["algorithm"]
    (problem,) = problems_of(ppo)
    assert problem.startswith("algorithm.name: missing. Right: ppo, grpo, dr_grpo, rloo,")
    assert problem.endswith(" sft or reward_model.")


def test_no_value_of_any_key_leads_to_another_kind_of_error(ppo, stages):
    for key in knob_names():
        path = key.replace("[]", "").split(".")
        for value in (None, True, -1, "x", [{}], {"a": {1: 2}}):
            with contextlib.suppress(ConfigError):
                build_config(_with(copy.deepcopy(ppo), path, value))
        with contextlib.suppress(ConfigError):
            build_config(_with(copy.deepcopy(stages), path, "x"))


def _with(document, path: list[str], value):
    holder = document
    for part in path[:-1]:
        if not isinstance(holder.get(part), dict):
            holder[part] = {}
        holder = holder[part]
    holder[path[-1]] = value
    return document
