"""Tiny runs: configs, data and models of every algorithm, small enough to launch in a test."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import IterationShape, iteration_graph
from flexrlhf.runtime.datasets import load_data
from flexrlhf.runtime.launch import Launched, launch

WORDS = ("<unk>", "<end>", "red", "green", "blue", "one", "two", "three", "four", "five", "six")
REWARD = """
def length(prompts, completions, **columns):
    return [0.1 * len(completion) for completion in completions]
"""


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of eleven words, whose pad token is its end token."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a data set of each kind and of a reward function."""
    folder = tmp_path_factory.mktemp("files")
    words = WORDS[2:]
    rows = {
        "prompts": [{"prompt": f"{words[i]} {words[i + 1]}", "number": i} for i in range(6)],
        "supervised": [{"prompt": words[i], "completion": words[i + 1]} for i in range(6)],
        "preferences": [
            {"prompt": words[i], "chosen": words[i + 1], "rejected": " ".join(words[:2])}
            for i in range(6)
        ],
    }
    paths = {}
    for kind, kind_rows in rows.items():
        path = folder / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in kind_rows))
        paths[kind] = str(path)
    (folder / "rewards.py").write_text(REWARD)
    return {**paths, "reward": f"{folder / 'rewards.py'}:length"}


@pytest.fixture
def make_document(tokenizer_folder: Path, files: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """Makes the document of a tiny run; keyword arguments replace keys of its sections."""
    architecture = {
        "model_type": "llama",
        "vocab_size": len(WORDS),
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "initializer_range": 0.3,
    }
    model = {
        "init": "random",
        "architecture": architecture,
        "tokenizer": str(tokenizer_folder),
        "dtype": "float64",
    }
    kinds = {"sft": "supervised", **dict.fromkeys(("reward_model", "dpo", "ipo"), "preferences")}

    def make(name: str = "grpo", /, **sections: dict[str, Any]) -> dict[str, Any]:
        kind = kinds.get(name, "prompts")
        document: dict[str, Any] = {
            "algorithm": {"name": name},
            "model": {"reward" if name == "reward_model" else "actor": model},
            "data": {
                kind: {"path": files[kind]},
                "max_prompt_tokens" if kind == "prompts" else "max_tokens": 8,
            },
            "training": {
                "iterations": 3,
                "prompts_per_iteration": 4,
                "learning_rate": 0.05,
                "micro_batch_tokens": 40,
            },
            "run": {"seed": 5, "trackers": []},
        }
        if kind == "prompts":
            document["rollout"] = {"max_new_tokens": 5, "samples_per_prompt": 2}
            document["reward"] = {"functions": [{"path": files["reward"]}]}
        for key, section in sections.items():
            document[key] = {**document.get(key, {}), **section}
        return copy.deepcopy(document)

    return make


@pytest.fixture
def make_config(make_document) -> Callable[..., RunConfig]:
    """Makes the resolved config of a tiny run."""
    return lambda *names, **sections: resolve(build_config(make_document(*names, **sections)))


@pytest.fixture
def make_launched(make_config, tokenizer_folder: Path) -> Callable[..., Launched]:
    """Launches a tiny run."""

    def make(*names: str, **sections: dict[str, Any]) -> Launched:
        config = make_config(*names, **sections)
        tokenizer = load_tokenizer(str(tokenizer_folder))
        return launch(config, load_data(config.data, spec_of(config).data, tokenizer))

    return make


@pytest.fixture
def make_graph() -> Callable[..., Graph]:
    """Makes the graph of an iteration on one device."""

    def make(iteration: int = 0, algorithm: str = "grpo", **shape: int) -> Graph:
        spec = algorithm_spec(algorithm)
        cuts = {"num_samples": 8, "mini_batches": 2, "micro_batches_per_mini_batch": 2, **shape}
        return iteration_graph(spec, one_device_plan(spec), IterationShape(**cuts), iteration)

    return make


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """Makes an answer of `num_tokens` tokens to a prompt of two."""

    def make(sample_id: int = 0, num_tokens: int = 3, text: str = "red", **columns: Any) -> Sample:
        length = 2 + num_tokens
        generator = torch.Generator().manual_seed(sample_id)
        return Sample(
            sample_id=sample_id,
            prompt=Prompt(sample_id, (2, 3), "red green", columns=columns),
            tokens=torch.randint(2, len(WORDS), (length,), generator=generator),
            num_prompt_tokens=2,
            mask=torch.arange(length) >= 2,
            text=text,
        )

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)
