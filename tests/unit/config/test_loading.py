"""Loading: defaults, paths, all errors at once, and the way back to YAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.config import build_config, dump_config, load_config, load_saved_config, resolve
from flexrlhf.config.yaml_text import parse_yaml
from flexrlhf.core.errors import ConfigError


def errors_of(document, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(document, **options)
    return str(caught.value)


def test_a_short_file_gets_defaults(write, ppo):
    config = load_config(write(ppo))
    assert config.algorithm.name == "ppo"
    assert config.training.prompts_per_iteration == 16
    assert config.training.betas == (0.9, 0.95)
    assert config.model.critic is None
    assert config.stage_configs() == [("ppo", config)]


def test_the_example_of_the_documentation_loads(write):
    config = load_config(
        write("""
        algorithm: {name: ppo, share_actor_critic: false, kl_coef: 0.05, gamma: 1.0,
                    gae_lambda: 0.95, clip: 0.2, epochs: 1}
        model: {actor: {path: models/actor}, critic: {path: models/critic},
                reward: {path: models/reward}}
        data: {prompts: {path: data/prompts.jsonl}, max_prompt_tokens: 64}
        reward: {functions: [{path: my_rewards.py:score, weight: 1.0}]}
        rollout: {engine: native, max_new_tokens: 64, temperature: 1.0, samples_per_prompt: 4}
        training: {iterations: 50, prompts_per_iteration: 16, mini_batch_samples: 32,
                   micro_batch_tokens: auto, learning_rate: 1.0e-6, critic_learning_rate: 5.0e-6}
        weights: {sync_every: 1, max_staleness: 0}
        cluster: auto
        placement: auto
        run: {seed: 0, checkpoint_every: 10, keep_checkpoints: 2, trackers: [tensorboard]}
        """)
    )
    assert config.reward.functions[0].path == "my_rewards.py:score"
    assert config.training.mini_batch_samples == 32


def test_all_problems_are_listed_in_one_error(grpo):
    grpo["algorithm"] |= {"clip": 1.5, "kl_coeff": 0.1, "kl_estimator": "k1"}
    grpo["rollout"] = {"samples_per_prompt": 1}
    grpo["trainings"] = {}
    text = errors_of(grpo, source="run.yaml")
    assert text.splitlines() == [
        "run.yaml: 5 problems.",
        "  - algorithm.clip = 1.5: out of range. Right: a number above 0 and below 1.",
        "  - algorithm.kl_coeff: unknown key. Did you mean 'kl_coef'?",
        "  - trainings: unknown key. Did you mean 'training'?",
        "  - rollout.samples_per_prompt = 1: grpo compares the answers to one prompt."
        " Right: at least 2.",
        '  - algorithm.kl_estimator = "k1": as a loss, k1 has an expected gradient of zero and'
        " would not hold the policy. Right: k2 or k3, or algorithm.kl_placement: reward.",
        "  Every key is described in docs/reference/config.md.",
    ]


def test_a_refused_value_causes_no_second_problem(ppo):
    ppo["algorithm"]["name"] = "grpoo"  # so whether data and roles fit is not known
    ppo["data"] = {"prompts": {"size": "many"}}
    lines = errors_of(ppo).splitlines()[1:-1]
    assert [line.split()[1].rstrip(":") for line in lines] == [
        "algorithm.name",
        "data.prompts.path",
        "data.prompts.size",
    ]
    assert "Did you mean 'grpo'?" in lines[0]


@pytest.mark.parametrize("document", [None, "", "# nothing\n", "[]", "{}"])
def test_an_empty_file_is_refused(write, document):
    path = write(document or "")
    with pytest.raises(ConfigError, match=r"run\.yaml is empty"):
        load_config(path)


@pytest.mark.parametrize("document", ["5", "- a\n- b\n", "text"])
def test_a_file_that_is_no_mapping_is_refused(write, document):
    with pytest.raises(ConfigError, match="not a mapping of sections"):
        load_config(write(document))


def test_paths_are_seen_from_the_file_then_from_the_current_folder(
    tmp_path: Path, write, ppo, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "models" / "actor").mkdir(parents=True)
    (elsewhere / "models" / "actor").mkdir(parents=True)
    (elsewhere / "models" / "reward").mkdir()
    (tmp_path / "my_rewards.py").touch()
    ppo["reward"] = {"functions": [{"path": "my_rewards.py:score"}]}
    path = write(ppo)
    monkeypatch.chdir(elsewhere)
    config = load_config(path)
    assert config.model.actor.path == str(tmp_path / "models" / "actor")
    assert config.model.reward.path == str(elsewhere / "models" / "reward")
    assert config.reward.functions[0].path == f"{tmp_path / 'my_rewards.py'}:score"
    assert config.data.prompts.path == "data/prompts.jsonl"  # in neither


def test_names_that_are_no_paths_stay(tmp_path: Path, grpo, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reasoning_gym:chain_sum").touch()
    (tmp_path / "llama-7b").mkdir()
    grpo["model"]["reference"] = {"shape": "llama-7b"}
    config = build_config(grpo, folder=tmp_path)
    assert config.data.prompts.path == "reasoning_gym:chain_sum"
    assert config.model.reference.shape == "llama-7b"


def test_the_dump_loads_back_equal(ppo, grpo, stages):
    for document in (ppo, grpo, stages):
        config = build_config(document)
        again = build_config(parse_yaml(dump_config(config), "dump"))
        assert again == config
        assert dump_config(again) == dump_config(config)


def test_a_stages_own_file_is_read_as_it_was_saved(write, stages, monkeypatch, tmp_path: Path):
    _, ppo = resolve(build_config(stages)).stage_configs()[2]
    path = write(dump_config(ppo))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.jsonl").touch()
    assert load_saved_config(path) == ppo


def test_a_damaged_saved_file_is_refused(write):
    with pytest.raises(ConfigError, match="unknown key"):
        load_saved_config(write("trainings: {}"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["1e-6", "2024-01-01", "yes", "null", "~", "0x1F", "1:30", "auto", "- a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(options=st.dictionaries(st.text(min_size=1, max_size=4), json_values, max_size=3))
def test_any_options_survive_the_dump(options):
    document = {
        "algorithm": {"name": "grpo"},
        "model": {"actor": {"path": "somewhere"}},
        "data": {"prompts": {"path": "reasoning_gym:chain_sum", "options": options}},
        "reward": {"functions": [{"name": "math"}]},
    }
    config = build_config(document)
    assert config.data.prompts.options == options
    assert build_config(parse_yaml(dump_config(config), "dump")) == config


def test_the_config_is_frozen(ppo):
    config = build_config(ppo)
    with pytest.raises(ValueError, match="frozen"):
        config.training.iterations = 3


def test_building_leaves_the_document_as_it_was(stages):
    before = str(stages)
    build_config(stages)
    assert str(stages) == before


def test_loading_needs_no_torch():
    code = "import sys, flexrlhf.config; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
