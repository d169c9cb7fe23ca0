"""Values that are each acceptable, but not together or not for the algorithm."""

from __future__ import annotations

import pytest

from flexrlhf.config import build_config
from flexrlhf.config.agreement import MOST_SAMPLES
from flexrlhf.config.data import DataSource, EvaluationSource
from flexrlhf.core.errors import ConfigError


def problems_of(document) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(document)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:-1]]


def only_problem(document) -> str:
    (problem,) = problems_of(document)
    return problem


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sft", "data.supervised: missing; sft reads supervised (given: prompts)."),
        ("reward_model", "data.preferences: missing; reward_model reads preferences"),
    ],
)
def test_the_data_that_the_algorithm_reads(ppo, name, said):
    ppo["algorithm"]["name"] = name
    unused = "reward" if name == "sft" else "actor"
    del ppo["model"][unused]
    assert only_problem(ppo).startswith(said)


def test_planning_needs_no_data(ppo):
    del ppo["data"]
    ppo["model"] = {"actor": {"shape": "llama-7b"}, "reward": {"shape": "llama-7b"}}
    assert build_config(ppo).model.actor.shape == "llama-7b"


def test_the_trained_role_is_needed(ppo):
    del ppo["model"]["actor"]
    assert only_problem(ppo).startswith("model.actor: missing; ppo trains it.")


@pytest.mark.parametrize(
    ("algorithm", "role", "said"),
    [
        ({"name": "grpo"}, "critic", "given, but grpo has none."),
        ({"name": "ppo", "share_actor_critic": True}, "critic", "a shared trunk holds the critic"),
    ],
)
def test_roles_that_the_algorithm_lacks(ppo, algorithm, role, said):
    ppo["algorithm"] = algorithm
    ppo["model"][role] = {"path": "somewhere"}
    assert said in only_problem(ppo)


def test_only_ppo_shares_a_trunk(grpo):
    grpo["algorithm"]["share_actor_critic"] = True
    assert "'grpo' has no critic" in only_problem(grpo)


def test_a_reference_may_be_named_to_measure_kl(ppo):
    ppo["algorithm"]["kl_coef"] = 0
    ppo["model"]["reference"] = {"path": "models/actor"}
    build_config(ppo)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({}, "model.actor: does not say where it comes from."),
        ({"path": "a", "shape": "b"}, "model.actor: has path and shape."),
        ({"path": "a", "architecture": {}}, "model.actor.architecture: given beside path."),
        ({"init": "random", "tokenizer": "t"}, "model.actor.architecture: init: random needs it"),
        (
            {"init": "random", "tokenizer": "t", "architecture": {"hidden_size": 8}},
            "with model_type among its keys",
        ),
        (
            {"init": "random", "architecture": {"model_type": "llama"}},
            "model.actor.tokenizer: missing; a model with init: random brings none.",
        ),
    ],
)
def test_where_a_model_comes_from(ppo, model, said):
    ppo["model"]["actor"] = model
    assert said in only_problem(ppo)


def test_a_random_reward_model_takes_the_actors_tokenizer(ppo):
    ppo["model"]["reward"] = {"init": "random", "architecture": {"model_type": "llama"}}
    build_config(ppo)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ({}, "reward.functions.0: needs a name or a path."),
        ({"name": "math", "path": "a.py:f"}, "reward.functions.0: needs a name or a path."),
        ({"path": "a.py"}, 'reward.functions.0.path = "a.py": not of the form FILE.py:FUNCTION.'),
        ({"path": "math"}, "built-in rewards are given by name"),
    ],
)
def test_reward_functions(grpo, function, said):
    grpo["reward"]["functions"] = [function]
    assert said in only_problem(grpo)


def test_something_has_to_reward(grpo):
    del grpo["reward"]
    assert only_problem(grpo).startswith("reward.functions: empty, and there is no model.reward")


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"kl_placement": "loss", "kl_estimator": "k1"}, "k1 has an expected gradient of zero"),
        ({"kl_coef": 0, "kl_target": 6.0}, "an adaptive coefficient that starts at kl_coef = 0"),
    ],
)
def test_kl(ppo, algorithm, said):
    ppo["algorithm"] |= algorithm
    assert said in only_problem(ppo)


@pytest.mark.parametrize("given", [{"kl_placement": "loss"}, {"kl_estimator": "k1"}])
def test_auto_kl_fits_what_is_given(ppo, given):
    ppo["algorithm"] |= given
    build_config(ppo)


def test_a_shortest_answer_longer_than_the_longest(ppo):
    ppo["rollout"] = {"min_new_tokens": 9, "max_new_tokens": 8}
    assert only_problem(ppo).startswith("rollout.min_new_tokens = 9: more than")


def test_a_mini_batch_divides_the_samples(ppo):
    ppo["training"] = {"mini_batch_samples": 30}
    assert only_problem(ppo) == (
        "training.mini_batch_samples = 30: does not divide the 64 samples of an iteration"
        " (prompts_per_iteration = 16, times samples_per_prompt = 4)."
        " Right: for example 8, 16, 32."
    )


def test_a_mini_batch_of_rows_does_not_count_answers(stages):
    stages["training"]["mini_batch_samples"] = 32
    problems = problems_of(stages)
    assert len(problems) == 1
    assert "the 16 samples of an iteration (prompts_per_iteration = 16)." in problems[0]


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"micro_batch_tokens": 700, "micro_batch_samples": 2}, "Right: one of the two."),
        ({"micro_batch_samples": 65}, "more than the mini-batch of 64 samples"),
        ({"micro_batch_samples": 9, "mini_batch_samples": 8}, "more than the mini-batch of 8"),
        (
            {"micro_batch_tokens": 639},
            "one sequence may have 640 tokens (data.max_prompt_tokens + rollout.max_new_tokens).",
        ),
    ],
)
def test_micro_batches(ppo, training, said):
    ppo["training"] = training
    assert said in only_problem(ppo)


def test_a_micro_batch_holds_the_longest_row(stages):
    stages["stages"][0]["training"] = {"micro_batch_tokens": 1000}
    assert "one sequence may have 1024 tokens (data.max_tokens)." in only_problem(stages)


def test_a_micro_batch_holds_both_answers_of_a_pair(stages):
    stages["stages"][1]["training"] = {"micro_batch_tokens": 2000}
    said = "one pair may have 2048 tokens (data.max_tokens + data.max_tokens)."
    assert said in only_problem(stages)


def test_generation_has_no_more_parts_than_prompts(ppo):
    ppo["rollout"] = {"micro_batches": 17}
    assert "more parts than the 16 prompts" in only_problem(ppo)


@pytest.mark.parametrize("answers", [1, 4])
def test_an_iteration_that_no_memory_holds_is_refused(ppo, answers):
    ppo["rollout"] = {"samples_per_prompt": answers}
    ppo["training"] = {"prompts_per_iteration": MOST_SAMPLES // answers, "mini_batch_samples": 250}
    build_config(ppo)
    ppo["training"]["prompts_per_iteration"] = 10**12
    problem = only_problem(ppo)
    assert problem.startswith("training.prompts_per_iteration = 1000000000000: an iteration would")
    assert f"hold {10**12 * answers} samples at once" in problem
    assert "Right: at most 1000000 samples." in problem


def test_greedy_answers_are_all_the_same(ppo):
    ppo["data"]["evaluation"] = {"path": "held_out.jsonl", "samples_per_prompt": 4}
    assert "greedy answers to one prompt are all the same" in only_problem(ppo)
    ppo["data"]["evaluation"]["greedy"] = False
    build_config(ppo)


@pytest.mark.parametrize(("key", "value"), [("greedy", False), ("samples_per_prompt", 4)])
def test_how_answers_are_drawn_is_refused_where_none_are(stages, key, value):
    """A saved config names the defaults, and must load again."""
    sft = {name: section for name, section in stages["stages"][0].items() if name != "name"}
    sft["data"]["evaluation"] = {"path": "held_out.jsonl", "greedy": True, "samples_per_prompt": 1}
    build_config(sft)
    sft["data"]["evaluation"][key] = value
    problem = only_problem(sft)
    assert problem.startswith(f"data.evaluation.{key} = ")
    assert "sft answers no prompts: held-out rows are judged by the loss on them" in problem


def test_held_out_rows_have_the_form_of_the_training_rows_unless_they_say_otherwise():
    training = DataSource(
        path="rows.jsonl", prompt_column="question", chat="always", system_prompt="Be brief."
    )
    held_out = EvaluationSource(path="held_out.jsonl", seed=5, size=7)
    assert held_out.like(training) == DataSource(
        path="held_out.jsonl",
        seed=5,
        size=7,
        prompt_column="question",
        chat="always",
        system_prompt="Be brief.",
    )
    own = {"prompt_column": "prompt", "chat": "never", "system_prompt": "Be long."}
    held_out = EvaluationSource(path="held_out.jsonl", **own)
    assert held_out.like(training).model_dump(include=set(own)) == own


@pytest.mark.parametrize(
    ("evaluation", "is_held_out"),
    [
        ({}, True),
        ({"seed": 0}, False),
        ({"seed": 999}, False),
        ({"seed": 1000}, True),
        ({"seed": 0, "options": {"max_terms": 9}}, True),
        ({"seed": 0, "path": "reasoning_gym:gcd"}, True),
    ],
)
def test_held_out_rows_are_not_training_rows(grpo, evaluation, is_held_out):
    grpo["data"]["evaluation"] = {"path": "reasoning_gym:chain_sum", **evaluation}
    if is_held_out:
        build_config(grpo)
    else:
        assert "some held-out rows would be training rows" in only_problem(grpo)


@pytest.mark.slow
def test_reasoning_gym_makes_row_i_from_seed_plus_i():
    """What the check above rests on: seeds 0 and 3 share all rows but three."""
    reasoning_gym = pytest.importorskip("reasoning_gym")
    first = reasoning_gym.create_dataset("chain_sum", seed=0, size=8)
    second = reasoning_gym.create_dataset("chain_sum", seed=3, size=5)
    assert [first[i + 3]["question"] for i in range(5)] == [second[i]["question"] for i in range(5)]


def test_an_adaptive_coefficient_needs_kl_in_the_reward(grpo):
    grpo["algorithm"] |= {"kl_coef": 0.1, "kl_target": 6.0}
    assert only_problem(grpo).startswith("algorithm.kl_target = 6.0: an adaptive coefficient works")


def test_an_iteration_must_be_shorter_than_the_kl_horizon(ppo):
    ppo["algorithm"] |= {"kl_target": 6.0, "kl_horizon": 10}
    assert only_problem(ppo).startswith("algorithm.kl_horizon = 10: 64 samples per iteration")


def test_trained_weights_in_bfloat16_are_refused_under_the_key_that_was_given(ppo):
    ppo["model"]["reward"]["dtype"] = "bfloat16"
    assert only_problem(ppo).startswith('model.reward.dtype = "bfloat16": the critic')
    ppo["model"]["critic"] = {"path": "models/critic"}
    build_config(ppo)


def test_rarer_syncs_need_staleness(ppo):
    ppo["weights"] = {"sync_every": 4, "max_staleness": 2}
    problem = only_problem(ppo)
    assert problem.startswith("weights.max_staleness = 2: weights.sync_every = 4 makes samples up")
    assert problem.endswith("Right: at least 3.")


def test_adapters_are_for_what_is_trained(ppo):
    ppo["model"]["actor"] |= {"lora": {"rank": 8}, "dtype": "bfloat16"}
    build_config(ppo)
    ppo["model"]["reward"]["lora"] = {"rank": 8}
    said = "model.reward.lora.rank = 8: ppo does not train the reward."
    assert only_problem(ppo) == f"{said} Right: for actor and critic."


def test_speculation_needs_the_native_engine(ppo):
    ppo["rollout"] = {"engine": "transformers", "speculation": "prompt_lookup"}
    assert only_problem(ppo) == (
        'rollout.speculation = "prompt_lookup": the engine transformers does not speculate. '
        "Right: none, or rollout.engine: native."
    )


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"speculation": "draft_model"}, "missing; rollout.speculation = draft_model."),
        ({"draft_model": "small"}, "nothing is asked of it: rollout.speculation = none."),
        (
            {"speculation": "draft_model", "draft_model": "reference"},
            "there is no model.reference, so that it would be as large as the actor.",
        ),
        (
            {"speculation": "draft_model", "draft_model": "stage:sft/actor"},
            "a stage trains no draft model.",
        ),
    ],
)
def test_a_draft_model_is_given_where_one_is_asked_for(ppo, rollout, said):
    ppo["rollout"] = rollout
    problem = only_problem(ppo)
    assert problem.startswith("rollout.draft_model")
    assert said in problem


def test_the_reference_may_propose(ppo):
    ppo["model"]["reference"] = {"path": "small"}
    ppo["rollout"] = {"speculation": "draft_model", "draft_model": "reference"}
    assert build_config(ppo).rollout.draft_model == "reference"


@pytest.mark.parametrize(
    ("sections", "key", "said"),
    [
        (
            {"rollout": {"engine": "transformers"}},
            "rollout.weights",
            "multiplies by the weights as",
        ),
        ({"training": {"precision": "bfloat16"}}, "rollout.weights", "would compute in bfloat16"),
        ({"rollout": {"speculation": "prompt_lookup"}}, "rollout.speculation", "the last bits"),
        ({"rollout": {"speculation": "auto"}}, "rollout.speculation", "Right: none, or rollout."),
        ({"cluster": {"workers": 2}}, "rollout.weights", "Right: same, or a run on one device."),
    ],
)
def test_weights_in_int8_need_native_float32_on_one_device(grpo, sections, key, said):
    grpo["rollout"] = {"weights": "int8"}
    build_config(grpo)
    for section, keys in sections.items():
        grpo[section] = {**grpo.get(section, {}), **keys}
    problem = only_problem(grpo)
    assert problem.startswith(key)
    assert said in problem


def test_weights_in_int8_are_rounded_from_float32(grpo):
    grpo["rollout"] = {"weights": "int8"}
    grpo["model"]["actor"]["dtype"] = "float64"
    assert only_problem(grpo) == (
        'rollout.weights = "int8": weights are rounded from float32, and the actor\'s are float64. '
        "Right: same, or model.actor.dtype: float32."
    )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rollout": {"engine": "transformers"}}, "Right: 0, or rollout.engine: native."),
        ({"rollout": {"weights": "int8"}}, "Right: 0, or rollout.weights: same."),
        ({"cluster": {"workers": 2}}, "Right: 0, or a run on one device."),
    ],
)
def test_prefixes_are_kept_by_native_with_weights_as_they_are_on_one_device(grpo, sections, said):
    grpo["rollout"] = {"kept_prefix_tokens": 64}
    build_config(grpo)
    for section, keys in sections.items():
        grpo[section] = {**grpo.get(section, {}), **keys}
    problem = only_problem(grpo)
    assert problem.startswith("rollout.kept_prefix_tokens = 64: ")
    assert said in problem


def test_where_nothing_is_generated_nobody_looks_at_rollout_weights(stages):
    stages["stages"][0]["rollout"] = {"weights": "int8"}
    stages["stages"][0]["model"]["actor"]["dtype"] = "float64"
    build_config(stages)
