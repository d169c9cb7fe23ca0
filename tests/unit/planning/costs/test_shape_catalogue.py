from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.hugging_face_config import shape_of_architecture
from flexrlhf.planning.costs.shape_catalogue import SHAPES, catalogue_rows, shape_named

ROOT = Path(__file__).parents[4]
ROWS = {row["name"]: row for row in catalogue_rows()}
# Named by the published measurements, or by users.
EXPECTED = (
    *("llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama2-7b", "llama2-13b", "llama2-70b"),
    *("codellama-34b", "llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b"),
    *("llama3.2-1b", "llama3.2-3b", "opt-350m", "opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b"),
    *("opt-30b", "opt-66b", "opt-175b", "gpt-j-6b", "gpt2", "falcon-180b", "qwen2.5-0.5b"),
    *("qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b"),
    *("qwen2.5-math-7b", "r1-distill-qwen-1.5b", "r1-distill-qwen-7b", "r1-distill-qwen-14b"),
    *("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3.5-35b-a3b", "deepseek-v3", "mistral-7b"),
    *("nemotron3-nano-30b-a3b", "mixtral-8x7b", "smollm2-135m"),
)


def test_the_table_is_part_of_the_package():
    table = files("flexrlhf.planning.costs") / "model_shapes.csv"
    assert table.read_text(encoding="utf-8").startswith("name,layers,hidden,")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["setuptools"]["package-data"]["flexrlhf"]
    assert any(fnmatch("planning/costs/model_shapes.csv", pattern) for pattern in shipped)


def test_every_named_model_is_there():
    assert set(EXPECTED) <= SHAPES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_counts_meet_the_published_ones(name):
    row, shape = ROWS[name], SHAPES[name]
    assert shape.num_params == pytest.approx(int(row["params_total"]), rel=1e-4)
    assert shape.num_active_params == pytest.approx(int(row["params_active"]), rel=1e-4)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_names_its_source(name):
    row = ROWS[name]
    assert row["source"]
    assert row["verified"] in {"yes", "no"}
    assert row["mlp"] in {"gated", "plain"}
    assert row["tied_embeddings"] in {"yes", "no"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("llama-7b", 2 * 32 * 4096),
        ("llama2-70b", 2 * 80 * 8 * 128),
        ("qwen2.5-7b", 2 * 28 * 4 * 128),
        ("falcon-180b", 2 * 80 * 8 * 64),
        ("opt-350m", 2 * 24 * 1024),
        ("deepseek-v3", 61 * (512 + 64)),
        ("qwen3.5-35b-a3b", 10 * 2 * 2 * 256),
        ("nemotron3-nano-30b-a3b", 6 * 2 * 2 * 128),
    ],
)
def test_numbers_per_token_in_the_cache(name, values):
    assert SHAPES[name].cache_values_per_token == values


def test_recurrent_states_are_constant_and_large():
    # Per layer: 32 heads of 128 x 128, and 4 steps of a convolution over 8,192 channels.
    assert SHAPES["qwen3.5-35b-a3b"].state_values == 30 * (32 * 128 * 128 + 4 * 8192)
    # Per layer: 64 heads of 64 x 128, and 4 steps over 64 x 64 + 2 x 8 x 128 channels.
    assert SHAPES["nemotron3-nano-30b-a3b"].state_values == 23 * (64 * 64 * 128 + 4 * 6144)
    assert SHAPES["llama-7b"].state_values == 0


def test_layers_of_the_unusual_models():
    deepseek, nemotron = SHAPES["deepseek-v3"], SHAPES["nemotron3-nano-30b-a3b"]
    assert (deepseek.dense_layers, deepseek.expert_layers) == (3, 58)
    assert (nemotron.attention_layers, nemotron.recurrent_layers) == (6, 23)
    assert nemotron.expert_layers == 23
    # Queries and keys are 192 wide, values 128, in each of 128 heads.
    flops = deepseek.forward_flops(1, 1) - deepseek.forward_flops(1, 0)
    assert flops == 61 * 2 * 128 * (192 + 128)


@pytest.mark.parametrize("name", ["Llama-7B", " qwen2.5-7b ", "QWEN3-8B"])
def test_capitals_do_not_matter(name):
    assert shape_named(name) is SHAPES[name.strip().lower()]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'llama3\.1-8b'\?") as caught:
        shape_named("llama3.1-8")
    assert "'llama3.1-8'" in caught.value.wrong
    assert "config.json" in caught.value.right
    with pytest.raises(ConfigError, match="Choose one of these"):
        shape_named("zzz")


def test_the_demo_is_the_one_of_the_demo():
    stages = yaml.safe_load((ROOT / "examples/demo/demo.yaml").read_text(encoding="utf-8"))
    architecture = stages["model"]["actor"]["architecture"]
    assert shape_of_architecture(architecture, "flexrlhf-demo") == SHAPES["flexrlhf-demo"]
