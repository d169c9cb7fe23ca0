"""Models that are damaged, do not work or do not fit each other start nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def copied(policy_folder, tmp_path) -> Path:
    """A copy of the model to be damaged."""
    return Path(shutil.copytree(policy_folder, tmp_path / "model"))


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def edit(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


DAMAGES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "torn weights": (lambda f: cut(f / "model.safetensors", 5000), "do not load"),
    "torn header": (lambda f: cut(f / "model.safetensors", 5), "do not load"),
    "pickle only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "a pickle can run any code",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer that can be read"),
    "torn tokenizer": (lambda f: cut(f / "tokenizer.json", 500), "no tokenizer that can be read"),
    "odd tokenizer": (
        lambda f: edit(f / "tokenizer.json", model={"type": "WordLevel"}),
        "no tokenizer that can be read",
    ),
    "torn config": (lambda f: cut(f / "config.json", 50), "config.json"),
    "odd config": (lambda f: edit(f / "config.json", hidden_size="wide"), "hidden_size"),
    "no heads": (lambda f: edit(f / "config.json", num_attention_heads=0), "ZeroDivisionError"),
    "no layers": (lambda f: edit(f / "config.json", num_hidden_layers=0), "it has no layers"),
    "other layers": (lambda f: edit(f / "config.json", num_hidden_layers=2), "lacks 9 of"),
    "other width": (lambda f: edit(f / "config.json", hidden_size=32), "do not load"),
    "code": (
        lambda f: edit(f / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.C"}),
        "code inside a folder is never run",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_models_start_nothing(changed, outcome, copied, damage):
    damaging, said = DAMAGES[damage]
    damaging(copied)
    content = changed("ppo", {"model.actor": {"path": str(copied)}})
    err = outcome(content, 2)
    assert said in err
    assert str(copied) in err or "model of actor" in err


@pytest.mark.parametrize("role", ["actor", "critic", "reference", "reward"])
def test_weights_that_are_no_numbers_start_nothing(changed, outcome, copied, role):
    file = copied / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    content = changed("ppo", {f"model.{role}": {"path": str(copied)}})
    said = r"model of (\w+) cannot compute: model\.layers\.0\.mlp\.up_proj\.weight holds nan"
    found = re.search(said, outcome(content, 2))
    assert found
    assert found[1] in {role, "critic" if role == "reward" else role}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_key_value_heads": 3}, "model of actor does not work"),
        ({"num_hidden_layers": 0}, "it has no layers"),
        ({"rope_theta": -1}, "inv_freq holds nan"),
        ({"hidden_act": "foo"}, "makes no model"),
        ({"hidden_size": 0}, "makes no model"),
        ({"vocab_size": 3}, "has ids up to 19"),
        ({"intermediate_size": 10**12}, "GB of memory"),
        ({"hiden_size": 16}, "Did you mean 'hidden_size'?"),
        ({"model_type": "llamas"}, "Did you mean 'llama'?"),
        ({"max_position_embeddings": 8}, "reads at most 8"),
    ],
)
def test_architectures_that_do_not_work_start_nothing(outcome, document, keys, said):
    content = document("ppo")
    actor = content["model"]["actor"]
    actor["architecture"] = actor["architecture"] | keys
    assert said in outcome(content, 2)


def test_a_reward_model_with_two_labels_is_refused(changed, outcome, copied):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(copied, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(copied)
    content = changed("ppo", {"model.reward": {"path": str(copied)}, "reward": {}})
    assert "classifier with 2 labels" in outcome(content, 2)


@pytest.mark.parametrize(
    ("algorithm", "role"),
    [("ppo", "reward"), ("ppo", "reference"), ("ppo", "critic"), ("dpo", "reference")],
)
def test_another_vocabulary_is_refused_under_the_role_that_has_it(
    changed, outcome, copied, algorithm, role
):
    tokenizer = copied / "tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.write_text(text.replace('"tea": 5', '"soup": 5').replace('"soup": 6', '"tea": 6'))
    err = outcome(changed(algorithm, {f"model.{role}": {"path": str(copied)}}), 2)
    assert f"actor and {role} have different vocabularies" in err
    assert f"'tea' is 5 in actor and 6 in {role}" in err


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 100])
def test_a_truncated_gguf_file_is_refused(changed, outcome, tmp_path, monkeypatch, content):
    monkeypatch.setenv("FLEXRLHF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(content)
    config = changed("ppo", {"model.actor": {"path": "model.gguf"}})
    assert "is no whole GGUF file" in outcome(config, 2)
    assert not list((tmp_path / "cache").rglob("*.*"))
