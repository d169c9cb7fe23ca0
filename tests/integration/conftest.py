"""A language of twenty words with its tokenizer, data sets and models: real files, all tiny.

Fixtures hand out functions: tests say in one line what is trained and how.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import flexrlhf

THINGS = ["tea", "soup", "bread", "river", "song", "house", "cat", "dog"]
GOOD = ["good", "warm", "kind"]
BAD = ["bad", "cold", "rude"]
WORDS = ["<pad>", "<end>", "say", "the", "is", *THINGS, *GOOD, *BAD, "."]
LLAMA = {
    "model_type": "llama",
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}
KINDS = {"sft": "supervised"} | dict.fromkeys(("reward_model", "dpo", "ipo"), "preferences")
"""Of the rows of algorithms that read no prompts."""
REWARDS = '''
import random

import numpy
import torch


def good(completions, **columns):
    """The part of an answer's words that are `good`."""
    return [text.split().count("good") / max(1, len(text.split())) for text in completions]


def noisy(completions, **columns):
    """As `good`, with noise from every global generator."""
    def noise():
        return 0.1 * (random.random() + numpy.random.random() + torch.rand(()).item())
    return [score + noise() for score in good(completions)]


def short(completions, **columns):
    """Minus a tenth per word."""
    return [-0.1 * len(text.split()) for text in completions]
'''
TIMING = ("time/", "throughput/", "memory/", "utilization/", "share/", "cost/")
"""Metrics that may differ between two runs that are the same."""

Document = dict[str, Any]


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """The folder that holds everything that configs name."""
    folder = tmp_path_factory.mktemp("world")
    generator = random.Random(0)
    (folder / "rewards.py").write_text(REWARDS)
    _write_tokenizer(folder / "tokenizer")
    _write_rows(folder / "prompts.jsonl", [{"prompt": f"say the {thing}"} for thing in THINGS])
    _write_rows(folder / "held-out.jsonl", [{"prompt": f"say {thing}"} for thing in THINGS[:3]])
    supervised = [
        {"prompt": f"say {thing}", "completion": f"the {thing} is {generator.choice(GOOD)} ."}
        for thing in THINGS * 2
    ]
    _write_rows(folder / "supervised.jsonl", supervised)
    pairs = [
        {
            "prompt": f"say {thing}",
            "chosen": f"the {thing} is {generator.choice(GOOD)}",
            "rejected": f"the {generator.choice(THINGS)} is {generator.choice(BAD)} .",
        }
        for thing in THINGS * 2
    ]
    _write_rows(folder / "preferences.jsonl", pairs)
    return folder


def _write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def rule_pairs(world: Path) -> tuple[str, str]:
    """Pairs that one rule makes: paths of those to train on, and of others about other things."""
    generator = random.Random(1)

    def pair(thing: str) -> Document:
        texts = (f"the {thing} is {generator.choice(words)} ." for words in (GOOD, BAD))
        return {"prompt": f"say {thing}", **dict(zip(("chosen", "rejected"), texts, strict=True))}

    paths = (world / "rule-pairs.jsonl", world / "held-out-rule-pairs.jsonl")
    for path, things in zip(paths, (THINGS[:6] * 4, THINGS[6:] * 10), strict=True):
        _write_rows(path, [pair(thing) for thing in things])
    return str(paths[0]), str(paths[1])


@pytest.fixture(scope="session")
def document(world: Path) -> Callable[..., Document]:
    """Returns the config of an algorithm as a mapping, ready to be changed."""

    def model(**keys: Any) -> Document:
        return {"init": "random", "architecture": LLAMA, "tokenizer": str(world / "tokenizer")} | (
            keys
        )

    def make(algorithm: str, *, dtype: str = "float32", **algorithm_keys: Any) -> Document:
        kind = KINDS.get(algorithm, "prompts")
        config: Document = {
            "algorithm": {"name": algorithm, **algorithm_keys},
            "model": {"reward" if algorithm == "reward_model" else "actor": model(dtype=dtype)},
            "data": {kind: {"path": str(world / f"{kind}.jsonl")}},
            "training": {
                "iterations": 4,
                "prompts_per_iteration": 8,
                "learning_rate": 1e-2,
                "micro_batch_tokens": 128,
                "threads": 1,
            },
            "run": {"trackers": [], "checkpoint_every": 2},
        }
        if kind == "prompts":
            config["data"]["max_prompt_tokens"] = 4
            config["rollout"] = {"max_new_tokens": 6, "samples_per_prompt": 2}
            config["reward"] = {"functions": [{"path": f"{world / 'rewards.py'}:good"}]}
            config["training"]["critic_learning_rate"] = 1e-2
        else:
            config["data"]["max_tokens"] = 12
        return config

    return make


@pytest.fixture(scope="session")
def staged(document: Callable[..., Document]) -> Callable[[], Document]:
    """Returns the config of a run of three stages: sft, reward model, ppo with all four models."""

    def make() -> Document:
        sft, preferences, ppo = document("sft"), document("reward_model"), document("ppo")
        preferences["model"] = {"reward": {"path": "stage:sft/actor"}}
        ppo["model"] = {
            "actor": {"path": "stage:sft/actor"},
            "reward": {"path": "stage:rm/reward"},
        }
        ppo["reward"] = {}
        stages = {"sft": sft, "rm": preferences, "ppo": ppo}
        shared = {"run": sft["run"]}
        for stage in stages.values():
            del stage["run"]
        return {**shared, "stages": [{"name": name, **keys} for name, keys in stages.items()]}

    return make


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[[Document], Path]:
    """Writes a config and returns the file."""

    def write(content: Document) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(json.dumps(content))  # JSON is YAML
        return path

    return write


@pytest.fixture
def train(tmp_path: Path, config_file) -> Callable[..., flexrlhf.RunResult]:
    """Trains a config in this process, into a folder of the test's own."""

    def run(
        content: Document, name: str = "run", *, overrides: Sequence[str] = (), **keys: Any
    ) -> flexrlhf.RunResult:
        config = flexrlhf.load_config(config_file(content), overrides=overrides)
        return flexrlhf.train(config, run_dir=tmp_path / name, **keys)

    return run


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process; returns exit status and both outputs."""
    from flexrlhf.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["flexrlhf", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        status = ended.value.code
        assert isinstance(status, int)
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def same_metrics() -> Callable[[Path], list[Document]]:
    """Returns the rows of metrics.jsonl without what no two runs have in common."""

    def read(run_dir: Path) -> list[Document]:
        rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if not k.startswith(TIMING)} for row in rows]

    return read


@pytest.fixture(scope="session")
def samples() -> Callable[[Path], list[Document]]:
    """Returns the rows of samples.jsonl."""

    def read(run_dir: Path) -> list[Document]:
        return [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def weights() -> Callable[[Path], dict[str, torch.Tensor]]:
    """Returns every tensor of the final models, by file and name."""

    def read(run_dir: Path) -> dict[str, torch.Tensor]:
        files = sorted((run_dir / "model").rglob("*.safetensors"))
        assert files
        return {
            f"{file.relative_to(run_dir)}:{name}": tensor
            for file in files
            for name, tensor in load_file(file).items()
        }

    return read


@pytest.fixture(scope="session")
def assert_same_run(same_metrics, samples, weights) -> Callable[[Path, Path], None]:
    """Checks that two runs left the same metrics, samples and weights, bit for bit."""

    def check(run_dir: Path, expected_dir: Path) -> None:
        assert same_metrics(run_dir) == same_metrics(expected_dir)
        if (expected_dir / "samples.jsonl").exists():
            assert samples(run_dir) == samples(expected_dir)
        found, expected = weights(run_dir), weights(expected_dir)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name

    return check
